"""Pictures, and the simulations behind them."""
