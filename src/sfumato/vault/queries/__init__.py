"""The four kinds of query, a module each: how far one record can move the answer, what that costs, and the private sum.

`vector`: a sum of vectors (a pilot's gradient or information, a family's statistic, scores at a reference point). `ratio`: a log
ratio of likelihoods. `linear`: a scalar linear in a sum of statistics. `remainder`: what a log ratio has beyond first order. The
wire's structures are in `protocol.questions`; the compiled loop asks by each module's `Source`, the desk by its `Rounds`. How far
one record moves each of them: `docs/proofs/queries.md`.
"""
