"""What each part of a history said, so that it can take it back before it speaks again.

Expectation propagation, mathematics.md section 20. A part is some hundred entries that are always learned
together. Its site (T, J) at an element of a node or a weight is what it added to the natural parameters of
that element at its last visit. Beside the prior (P, H) of the element:

    t = 1/v - P - T,    h = m/v - H - J             what all others said
    v = 1/(P + t),      m = v (H + h)               `take_back`: the cavity, from which the part is learned
    T = 1/v' - P - t,   J = m'/v' - H - h           `keep`: rounded first, then applied

So however often a part is visited, the posterior holds once what it says. Rows without sites give back a
share instead (`give_back`): stochastic expectation propagation.
"""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, kernel

# a site is stored as bfloat16: the upper half of a float32
UPPER, HALF, LOWEST = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)
SMALLEST = 1e-6  # precision of the widest cavity


@kernel(**COMPILE)
def take_back(mean, var, rows, prior_precision, prior_shift, site, others):
    """Turn some rows into their cavities, in place.

    prior_precision, prior_shift: P and H, of the same shape as mean, or of one row for all
    site   (rows, 2, size): T and J as stored
    others (3, rows, size): filled with t and h. Where the cavity would have less than half of the prior's
           precision, the element has to sit this visit out: others has NaN, its mean and its variance
    """
    numbers = np.empty(2, np.float32)
    bits = numbers.view(np.uint32)
    for i in range(len(rows)):
        row = rows[i]
        own = min(row, len(prior_precision) - 1)
        for e in range(mean.shape[1]):
            bits[0], bits[1] = np.uint32(site[i, 0, e]) << UPPER, np.uint32(site[i, 1, e]) << UPPER
            prior, shift, precision = prior_precision[own, e], prior_shift[own, e], 1.0 / var[row, e]
            t, h = precision - prior - numbers[0], mean[row, e] * precision - shift - numbers[1]
            if prior + t > max(0.5 * prior, SMALLEST):
                others[0, i, e], others[1, i, e] = t, h
                var[row, e] = 1.0 / (prior + t)
                mean[row, e] = (shift + h) / (prior + t)
            else:
                others[0, i, e], others[1, i, e], others[2, i, e] = np.nan, mean[row, e], var[row, e]


@kernel(**COMPILE)
def keep(mean, var, rows, prior_precision, prior_shift, site, others):
    """Store in `site` what the rows have learned since `take_back`, and set them to what was stored.

    An element that had no cavity goes back to where it was and keeps its site. One that would be left with
    too little precision has learned nothing.
    """
    numbers = np.empty(2, np.float32)
    bits = numbers.view(np.uint32)
    for i in range(len(rows)):
        row = rows[i]
        own = min(row, len(prior_precision) - 1)
        for e in range(mean.shape[1]):
            prior, shift, precision = prior_precision[own, e], prior_shift[own, e], 1.0 / var[row, e]
            t, h = others[0, i, e], others[1, i, e]
            numbers[0], numbers[1] = precision - prior - t, mean[row, e] * precision - shift - h
            for k in range(2):  # to the nearest, ties to even
                bits[k] = (bits[k] + HALF + ((bits[k] >> UPPER) & LOWEST)) >> UPPER << UPPER
            new = prior + t + numbers[0]
            if new > max(0.5 * prior, SMALLEST):  # false for NaN
                site[i, 0, e], site[i, 1, e] = bits[0] >> UPPER, bits[1] >> UPPER
                var[row, e] = 1.0 / new
                mean[row, e] = (shift + h + numbers[1]) / new
            elif t == t:
                site[i, 0, e], site[i, 1, e] = 0, 0
                var[row, e] = 1.0 / (prior + t)
                mean[row, e] = (shift + h) / (prior + t)
            else:
                mean[row, e], var[row, e] = others[1, i, e], others[2, i, e]


@kernel(**COMPILE)
def give_back(mean, var, rows, prior_precision, prior_shift, share):
    """Let some rows forget a share of what they have learned since the prior, in place.

    share: (rows,) the entries of the part among all entries of the row
    """
    for i in range(len(rows)):
        row, kept = rows[i], 1.0 - share[i]
        own = min(row, len(prior_precision) - 1)
        for e in range(mean.shape[1]):
            prior, shift, precision = prior_precision[own, e], prior_shift[own, e], 1.0 / var[row, e]
            t, h = kept * max(precision - prior, 0.0), kept * (mean[row, e] * precision - shift)
            var[row, e] = 1.0 / (prior + t)
            mean[row, e] = (shift + h) / (prior + t)
