"""Aggregation rules as short loops over clients. Each returns what a round takes off the model ``x``.

``s`` is whatever the rule remembers, an empty dict before the first round.
"""

import numpy as np

from reference.made_rounds import D, K, M, MadeRound


def _arrived(r: MadeRound) -> list[int]:
    return [m for m in range(M) if r.z[m] > 0]


def _drawn(r: MadeRound) -> list[int]:
    return [m for m in range(M) if r.n[m] > 0]


def _sum(vectors) -> np.ndarray:
    return sum(vectors, np.zeros(D))


def _plain(r: MadeRound, x: np.ndarray, factor) -> np.ndarray:
    return r.lr * r.scale / K * _sum(r.z[m] * r.c[m] * factor(m) * r.delta(m, x) for m in _arrived(r))


def fedavg(s, r, x):
    return _plain(r, x, lambda m: 1)


def fedavg_received(s, r, x):
    arrived = sum(r.z[m] * r.c[m] for m in _arrived(r))
    return _plain(r, x, lambda m: K / arrived)


def ca_fedavg(s, r, x):
    return _plain(r, x, lambda m: 1 / (1 - r.q[m]))


def ca_fedavg_capped(s, r, x):
    return _plain(r, x, lambda m: min(1 / (1 - r.q[m]), 1.5))


def fednova(tau):
    def step(s, r, x):
        value = tau(r)
        return _plain(r, x, lambda m: value / r.A[m])

    return step


def tau_gamma(r):
    gamma = r.p * (1 - r.q) * r.c
    return gamma @ r.A / gamma.sum()


def tau_omega(r):
    return r.w @ r.A


def tau_received(r):
    return r.z @ r.A / r.z.sum() if r.z.any() else 0.0


def tau_selected(r):
    return r.n @ r.A / r.n.sum()


def ca_fednova(s, r, x):
    return _plain(r, x, lambda m: (r.w @ r.A) / ((1 - r.q[m]) * r.A[m]))


def scheme_c(nominal):
    def step(s, r, x):
        return _plain(r, x, lambda m: (nominal or max(r.T)) / r.T[m])

    return step


def fedvarp(variant, normalize=False):
    def step(s, r, x):
        y = s.setdefault("y", [np.zeros(D) for _ in range(M)])
        fresh = {m: r.delta(m, x) / (r.A[m] if normalize else 1) for m in _arrived(r)}
        if variant == "paper":
            # A client that was heard for some of its draws stands in for its own lost ones.
            v = _sum(r.n[m] * r.c[m] / K * fresh.get(m, y[m]) for m in _drawn(r))
        else:
            v = _sum(r.w[m] * y[m] for m in range(M))
            for m in fresh:
                share = 1 / len(fresh) if variant == "original" else r.z[m] * r.w[m] / (K * r.p[m] * (1 - r.q[m]))
                v = v + share * (fresh[m] - y[m])
        for m in fresh:
            y[m] = fresh[m]
        return r.lr * r.scale * v * (r.w @ r.A if normalize else 1)

    return step


def mifa(s, r, x):
    y = s.setdefault("y", [np.zeros(D) for _ in range(M)])
    for m in _arrived(r):
        y[m] = r.delta(m, x)
    return r.lr * r.scale * _sum(r.w[m] * y[m] for m in range(M))


def fedstale(beta):
    def step(s, r, x):
        """The convex mix of c-a-FedAvg and FedVARP, each computed for itself."""
        y = s.setdefault("y", [np.zeros(D) for _ in range(M)])
        fresh = {m: r.delta(m, x) for m in _arrived(r)}
        share = {m: r.z[m] * r.w[m] / (K * r.p[m] * (1 - r.q[m])) for m in fresh}
        without = _sum(share[m] * fresh[m] for m in fresh)
        varp = _sum(r.w[m] * y[m] for m in range(M)) + _sum(share[m] * (fresh[m] - y[m]) for m in fresh)
        for m in fresh:
            y[m] = fresh[m]
        return r.lr * r.scale * ((1 - beta) * without + beta * varp)

    return step


def fedau(cutoff, server_lr):
    def step(s, r, x):
        """Keeps the finished intervals themselves and averages them anew each time."""
        intervals = s.setdefault("intervals", [[] for _ in range(M)])
        running = s.setdefault("running", [0] * M)
        v = _sum(r.w[m] * (np.mean(intervals[m]) if intervals[m] else 1) * r.delta(m, x) for m in _arrived(r))
        for m in range(M):
            running[m] += 1
            if r.z[m] > 0 or running[m] == cutoff:
                intervals[m].append(running[m])
                running[m] = 0
        return r.lr * r.scale * server_lr * v

    return step


def debiased(s, r, x):
    """Keeps who arrived in which round, and counts anew each time."""
    history = s.setdefault("history", [])
    history.append(_arrived(r))
    share = {m: np.mean([m in there for there in history]) for m in _arrived(r)}
    return r.lr * r.scale * _sum(r.w[m] / share[m] * r.delta(m, x) for m in _arrived(r))


def _take_over(s, x):
    """Those who arrived last time begin this round with the global model; at first all do."""
    models = s.setdefault("models", {})
    for m in s.get("heard", range(M)):
        models[m] = x
    return models


def fedawe(weighted, normalize, server_lr=1.0):
    def step(s, r, x):
        models, last = _take_over(s, x), s.setdefault("last", [0] * M)
        s["heard"] = _arrived(r)
        moved = []
        for m in _arrived(r):
            innovation = r.lr * r.scale * r.delta(m, models[m])
            innovation = innovation * (M * r.w[m] if weighted else 1) * ((r.w @ r.A) / r.A[m] if normalize else 1)
            moved.append(models[m] - server_lr * (r.index - last[m]) * innovation)
            last[m] = r.index
        return x - np.mean(moved, axis=0) if moved else np.zeros(D)

    return step


def fedpbc(s, r, x):
    models = _take_over(s, x)
    for m in _drawn(r):
        models[m] = models[m] - M * r.n[m] * r.c[m] / K * r.lr * r.scale * r.delta(m, models[m])
    s["heard"] = _arrived(r)
    return x - np.mean([models[m] for m in _arrived(r)], axis=0) if _arrived(r) else np.zeros(D)


def scaffold(commit):
    def step(s, r, x):
        client, server = s.setdefault("client", np.zeros((M, D))), s.setdefault("server", np.zeros(D))
        v, change = np.zeros(D), np.zeros(D)
        for m in _drawn(r):
            if r.z[m] == 0 and commit == "ack":
                continue
            delta = r.delta(m, x, server - client[m])
            renewed = client[m] - server + delta / r.A[m]
            if r.z[m] > 0:
                change += r.w[m] * (renewed - client[m])
                v += r.z[m] * r.c[m] / K * delta
            client[m] = renewed
        s["server"] = server + change
        return r.lr * r.scale * v

    return step


def adaptive_controls(smoothing, decay):
    def step(s, r, x):
        """Keeps all terms of both sums with their round, and weighs them anew each time."""
        controls, terms = s.setdefault("controls", {}), s.setdefault("terms", [])
        server = _sum(r.w[m] * controls[m] for m in controls)
        energy = sum(decay ** (r.index - 1 - i) * (d @ d) for i, y, d in terms)
        agreement = sum(decay ** (r.index - 1 - i) * (y @ d) for i, y, d in terms)
        beta = np.clip(agreement / energy, 0, 1) if terms else 0
        v, renewed = np.zeros(D), dict(controls)
        for m in _arrived(r):
            shift = beta * (server - controls[m]) if m in controls else np.zeros(D)
            delta = r.delta(m, x, shift)
            y = delta / r.A[m] - shift
            if m in controls:
                terms.append((r.index, y, controls[m] - server))
            renewed[m] = (r.A[m] * y + smoothing * controls.get(m, y)) / (r.A[m] + smoothing)
            v += r.z[m] * r.c[m] / K * delta
        s["controls"] = renewed
        return r.lr * r.scale * v

    return step


def tracking(common):
    """FOCUS, and with the common shift FedSUM: keeps what is known of each client's gradient and adds it all up."""

    def step(s, r, x):
        known = s.setdefault("known", np.zeros((M, D)))
        total = r.w @ known if common else np.zeros(D)
        renewed = known.copy()
        for m in _arrived(r):
            renewed[m] = r.delta(m, x, total - known[m]) / r.A[m] - total + known[m]
        s["known"] = renewed
        return r.lr * r.scale * (r.w @ r.A) * (r.w @ renewed)

    return step


def feddyn(alpha):
    def step(s, r, x):
        """By models, as the paper writes it: theta of each client, its linear term h, and their means."""
        h = s.setdefault("h", np.zeros((M, D)))
        if not _arrived(r):
            return np.zeros(D)
        theta = {m: x - r.lr * r.delta(m, x, -h[m]) for m in _arrived(r)}
        for m in theta:
            h[m] = h[m] - alpha * (theta[m] - x)
        return r.scale * (x - (np.mean(list(theta.values()), axis=0) - r.w @ h / alpha))

    return step


def amplified(inner, period, factor):
    def step(s, r, x):
        """Remembers the model with which the period began."""
        if (r.index - 1) % period == 0:
            s["began"] = x
        after = x - inner(s.setdefault("inner", {}), r, x)
        return x - (s["began"] + factor * (after - s["began"]) if r.index % period == 0 else after)

    return step


def fedexp(epsilon):
    def step(s, r, x):
        moved = {m: r.lr * r.scale * r.delta(m, x) for m in _arrived(r)}
        share = {m: r.z[m] * r.c[m] / K for m in moved}
        g = _sum(share[m] * moved[m] for m in moved)
        factor = sum(share[m] * np.linalg.norm(moved[m]) ** 2 for m in moved)
        return max(1, factor / (2 * (np.linalg.norm(g) ** 2 + epsilon))) * g

    return step


def with_momentum(inner, beta, lr):
    def step(s, r, x):
        s["v"] = beta * s.get("v", 0) + inner(s.setdefault("inner", {}), r, x)
        return lr * s["v"]

    return step


def with_adam(inner, lr, beta1, beta2, epsilon, yogi=False):
    def step(s, r, x):
        g = inner(s.setdefault("inner", {}), r, x)
        m, v = s.get("m", np.zeros(D)), s.get("v", np.full(D, epsilon**2))
        s["m"] = beta1 * m + (1 - beta1) * g
        s["v"] = v - (1 - beta2) * g**2 * np.sign(v - g**2) if yogi else beta2 * v + (1 - beta2) * g**2
        return lr * s["m"] / (np.sqrt(s["v"]) + epsilon)

    return step


def favano(s, r, x):
    models = _take_over(s, x)
    s["heard"] = _arrived(r)
    scale = r.lr * r.scale * (r.w @ r.A)
    sent = {m: models[m] - scale * r.c[m] * r.delta(m, models[m]) / r.A[m] for m in _arrived(r)}
    return _sum(r.z[m] * (x - sent[m]) for m in sent) / (K + 1)


def safa(tolerance):
    def step(s, r, x):
        """In the words of the protocol: versions, deprecated clients, a cache of models and their mean."""
        cache = s.setdefault("cache", dict.fromkeys(range(M), x))
        local = s.setdefault("local", dict.fromkeys(range(M), (x, 0)))
        for m in s.get("heard", []):
            local[m] = (x, r.index - 1)
        for m in range(M):
            if r.index - 1 - local[m][1] > tolerance:
                local[m] = (x, r.index - 1)
                cache[m] = x
        for m in _arrived(r):
            cache[m] = local[m][0] - r.lr * r.scale * r.delta(m, local[m][0])
        s["heard"] = _arrived(r)
        return x - _sum(r.w[m] * cache[m] for m in range(M))

    return step


def aced(max_age):
    def step(s, r, x):
        rows = s.setdefault("rows", {})
        for m in _arrived(r):
            rows[m] = (r.index, r.delta(m, x))
        young = [m for m in rows if r.index - rows[m][0] <= max_age]
        total = _sum(r.w[m] * rows[m][1] for m in young)
        return r.lr * r.scale * total / max(sum(r.w[m] for m in young), 1e-12)

    return step
