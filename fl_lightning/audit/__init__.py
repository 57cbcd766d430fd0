"""What a federation really optimised, from a log of who was asked and whose upload arrived; of any framework."""

from fl_lightning.audit.estimate import Audit, audit
from fl_lightning.audit.log import Log, LogWriter, Row, read_log
from fl_lightning.audit.words import assert_objective

__all__ = ["Audit", "Log", "LogWriter", "Row", "assert_objective", "audit", "read_log"]
