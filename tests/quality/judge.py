"""Distances between log-probabilities and those of the float32 reference, from what a program shows: the chosen id's and
its best ones. Standard library only."""

import math


class Judge:
    """Sums over positions. A golden row is [log-probability of the next id, [[id, log-probability] …]] with the ids that
    matter; all others together are one outcome. The KL divergence over these outcomes is at most the one over the whole
    vocabulary, and is the same measure for every program."""

    def __init__(self):
        self.n = 0
        self.kl = []
        self.next_abs = []
        self.same_top = 0
        self.nll_ref = self.nll = 0.0

    def position(self, row, next_lp, best):
        """next_lp: log-probability given to the next id; best: {id: log-probability}, the best ones."""
        ref_next, top = row
        p_rest, q_rest, kl = 1.0, 1.0, 0.0
        for i, lp in top:
            q = best.get(i)
            if q is None:  # not shown: it belongs to the rest on both sides
                continue
            p = math.exp(lp)
            p_rest -= p
            q_rest -= math.exp(q)
            kl += p * (lp - q)
        p_rest, q_rest = max(p_rest, 1e-9), max(q_rest, 1e-9)
        kl += p_rest * math.log(p_rest / q_rest)
        self.kl.append(kl)
        self.next_abs.append(abs(ref_next - next_lp))
        self.same_top += max(best, key=best.get) == top[0][0]
        self.nll_ref -= ref_next
        self.nll -= next_lp
        self.n += 1

    def figures(self):
        if not self.n:
            return {"n": 0}
        return {
            "n": self.n,
            "kl": round(sum(self.kl) / self.n, 6),
            "kl_max": round(max(self.kl), 4),
            "next_abs": round(sum(self.next_abs) / self.n, 5),
            "same_top": round(self.same_top / self.n, 4),
            "ppl_ratio": round(math.exp((self.nll - self.nll_ref) / self.n), 5),
        }
