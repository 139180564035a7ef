//! The stationary law of a page under PostgreSQL's clock sweep.
//!
//! A page is visited by a Poisson process; the hand passes its buffer once a clock pass. With `x` the expected
//! number of visits in a clock pass, everything depends on `x` alone. A visit raises the counter by a random number of
//! steps, because real accesses come several at a time (an UPDATE pins its page again, a SELECT follows); the
//! distribution of that number is a [`Batch`]. The load itself is the first visit and leaves the counter at the size of
//! its batch (bufmgr.c: BufferAlloc sets 1, PinBuffer adds 1 up to BM_MAX_USAGE_COUNT = 5), the hand subtracts 1 or
//! evicts at 0 (freelist.c: StrategyGetBuffer), and the hand first visits the page one clock pass after its load.
//!
//! A counter never falls between two passes, so after five visits it is at its cap whatever the batches were: the
//! evolution over a clock pass is a sum of five terms, exact and stable for every `x`.

/// Counters run from 0 to this cap (buf_internals.h: BM_MAX_USAGE_COUNT).
pub const MAX_USAGE_COUNT: usize = 5;

/// Counter values of a resident page.
const STATES: usize = MAX_USAGE_COUNT + 1;

/// Absent, then the counters 0 to 5.
pub const OUTCOMES: usize = STATES + 1;

/// The chain seen at the hand's passes is taken at this rate at most: exp(−5x) must not vanish.
const CHAIN_RATE_CAP: f64 = 100.0;

/// The probabilities that a visit raises the counter by 1, 2, 3, 4, and 5 or more.
pub type Batch = [f64; MAX_USAGE_COUNT];

/// Every visit is a single access.
pub const SINGLE: Batch = [1.0, 0.0, 0.0, 0.0, 0.0];

/// Visits that bring a geometric number of accesses, P(b = k) = (1 − q) q^(k−1), cut at the cap.
pub fn geometric_batch(q: f64) -> Batch {
    let mut batch = [0.0; MAX_USAGE_COUNT];
    for (k, p) in batch.iter_mut().enumerate() {
        *p = (1.0 - q) * q.powi(k as i32);
    }
    batch[MAX_USAGE_COUNT - 1] = q.powi(MAX_USAGE_COUNT as i32 - 1);
    batch
}

type Matrix = [[f64; STATES]; STATES];

/// P(N > k) for k = 0..5 and P(N = k) for k = 0..5, N Poisson with mean x, accurate for small x too.
fn poisson(x: f64) -> ([f64; MAX_USAGE_COUNT], [f64; MAX_USAGE_COUNT]) {
    let mut mass = [0.0; MAX_USAGE_COUNT];
    let mut p = (-x).exp();
    for (k, m) in mass.iter_mut().enumerate() {
        if k > 0 {
            p *= x / k as f64;
        }
        *m = p;
    }
    let mut tail = [0.0; MAX_USAGE_COUNT];
    if x < 4.0 {
        // Sum the tail itself: 1 − Σ would cancel.
        let mut term = mass[MAX_USAGE_COUNT - 1];
        let mut beyond = 0.0;
        for k in MAX_USAGE_COUNT..60 {
            term *= x / k as f64;
            let sum = beyond + term;
            if sum <= beyond {
                // Later terms are smaller: they would change nothing either.
                break;
            }
            beyond = sum;
        }
        for k in (0..MAX_USAGE_COUNT).rev() {
            tail[k] = beyond;
            beyond += mass[k];
        }
    } else {
        let mut below = 0.0;
        for k in 0..MAX_USAGE_COUNT {
            below += mass[k];
            tail[k] = (1.0 - below).max(0.0);
        }
    }
    (mass, tail)
}

/// The powers 0 to 4 of the matrix that one visit applies to the counter.
fn visit_powers(batch: &Batch) -> [Matrix; MAX_USAGE_COUNT] {
    let mut one = [[0.0; STATES]; STATES];
    for (counter, row) in one.iter_mut().enumerate() {
        for (step, p) in batch.iter().enumerate() {
            row[(counter + step + 1).min(MAX_USAGE_COUNT)] += p;
        }
    }
    let mut powers = [[[0.0; STATES]; STATES]; MAX_USAGE_COUNT];
    for (i, row) in powers[0].iter_mut().enumerate() {
        row[i] = 1.0;
    }
    for k in 1..MAX_USAGE_COUNT {
        for i in 0..STATES {
            for j in 0..STATES {
                powers[k][i][j] = (0..STATES).map(|m| powers[k - 1][i][m] * one[m][j]).sum();
            }
        }
    }
    powers
}

/// Σ_k weight_k · power_k, what remains of the weight going to the cap.
fn blend(
    powers: &[Matrix; MAX_USAGE_COUNT],
    weights: &[f64; MAX_USAGE_COUNT],
    rest: f64,
) -> Matrix {
    let mut out = [[0.0; STATES]; STATES];
    for (power, w) in powers.iter().zip(weights) {
        for i in 0..STATES {
            for j in i..STATES {
                out[i][j] += w * power[i][j];
            }
        }
    }
    for row in &mut out {
        row[MAX_USAGE_COUNT] += rest;
    }
    out
}

/// The stationary law of a Markov chain by state reduction without subtraction, so that even probabilities of 1e-100
/// keep their leading digits (Grassmann, Taksar and Heyman 1985).
fn stationary_of(mut chain: Matrix) -> [f64; STATES] {
    let mut leaving = [0.0; STATES];
    for n in (1..STATES).rev() {
        leaving[n] = chain[n][..n].iter().sum();
        for i in 0..n {
            let into = chain[i][n] / leaving[n];
            for j in 0..n {
                chain[i][j] += into * chain[n][j];
            }
        }
    }
    let mut law = [0.0; STATES];
    law[0] = 1.0;
    for n in 1..STATES {
        law[n] = (0..n).map(|i| law[i] * chain[i][n]).sum::<f64>() / leaving[n];
    }
    let total: f64 = law.iter().sum();
    law.map(|p| p / total)
}

/// Return the probabilities, at a random time, that a page with `x` visits per pass is absent or has counter 0 to 5.
///
/// For single accesses this is the closed form P(absent) = 1/(1 + xV), V the expected clock passes of a residence;
/// batches replace V by the solution of a six-state chain seen at the hand's passes. The seven numbers sum to 1.
///
/// # Panics
///
/// Never for finite `x > 0` and a batch that sums to 1.
pub fn stationary(x: f64, batch: &Batch) -> [f64; OUTCOMES] {
    let powers = visit_powers(batch);
    stationary_with(x, batch, &powers)
}

/// [`stationary`] for many rates, one row each.
pub fn stationary_table(rates: &[f64], batch: &Batch) -> Vec<[f64; OUTCOMES]> {
    let powers = visit_powers(batch);
    rates
        .iter()
        .map(|&x| stationary_with(x, batch, &powers))
        .collect()
}

fn stationary_with(x: f64, batch: &Batch, powers: &[Matrix; MAX_USAGE_COUNT]) -> [f64; OUTCOMES] {
    let (mass, tail) = poisson(x);
    // Time spent with exactly k visits behind it, as a share of the pass: ∫ P(N_xt = k) dt = P(N_x > k) / x,
    // and a pass weighs by its length.
    let spent = tail.map(|t| t / x);
    let during = blend(powers, &spent, (1.0 - spent.iter().sum::<f64>()).max(0.0));
    let (mass, tail) = if x > CHAIN_RATE_CAP {
        poisson(CHAIN_RATE_CAP)
    } else {
        (mass, tail)
    };
    let at_pass = blend(powers, &mass, tail[MAX_USAGE_COUNT - 1]);
    // Seen just after each pass; an eviction is followed by the start of the next residence.
    let mut next_lap = [[0.0; STATES]; STATES];
    for i in 0..STATES {
        next_lap[i][..MAX_USAGE_COUNT].copy_from_slice(&at_pass[i][1..]);
        for (counter, p) in batch.iter().enumerate() {
            next_lap[i][counter + 1] += at_pass[i][0] * p;
        }
    }
    let law = stationary_of(next_lap);
    let evicted: f64 = (0..STATES).map(|s| law[s] * at_pass[s][0]).sum();
    // A residence lasts 1 / evicted passes, the absence after it 1 / x.
    let resident = x / (x + evicted);
    let mut out = [0.0; OUTCOMES];
    out[0] = evicted / (x + evicted);
    for (counter, p) in out[1..].iter_mut().enumerate() {
        let time: f64 = (0..STATES).map(|s| law[s] * during[s][counter]).sum();
        *p = resident * time;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form for single accesses, written independently of the chain.
    fn closed_form(x: f64) -> [f64; OUTCOMES] {
        let e = x.exp();
        let t = |m: usize| -> f64 {
            let mut term = 1.0;
            let mut sum = 0.0;
            for k in 0..m {
                if k > 0 {
                    term *= x / k as f64;
                }
                sum += term;
            }
            e - sum
        };
        let a0 = 1.0;
        let a1 = 1.0 + t(2);
        let a2 = t(3) + a1 * t(2);
        let a3 = t(4) + a1 * t(3) + a2 * t(2);
        let a4 = t(5) + a1 * t(4) + a2 * t(3) + a3 * t(2);
        let a = [a0, a1, a2, a3, a4];
        let v = e * a.iter().sum::<f64>();
        let norm = 1.0 + x * v;
        let mut out = [0.0; OUTCOMES];
        out[0] = 1.0 / norm;
        for c in 0..5 {
            out[c + 1] = (0..=c).map(|j| a[j] * t(c - j + 1)).sum::<f64>() / norm;
        }
        out[6] = e
            * (0..5)
                .map(|j| a[j] * (x - (1..=5 - j).map(|k| t(k) / e).sum::<f64>()))
                .sum::<f64>()
            / norm;
        out
    }

    #[test]
    fn single_accesses_agree_with_the_closed_form() {
        for x in [0.05, 0.2, 0.7, 1.5, 3.0, 6.0, 10.0] {
            let chain = stationary(x, &SINGLE);
            let closed = closed_form(x);
            for (c, (p, q)) in chain.iter().zip(closed).enumerate() {
                assert!((p - q).abs() < 1e-8, "x={x} outcome {c}: {p} against {q}");
            }
        }
    }

    #[test]
    fn probabilities_sum_to_one_over_ten_decades() {
        for exponent in -40..40 {
            let x = 10f64.powf(f64::from(exponent) / 8.0);
            for batch in [SINGLE, geometric_batch(0.5), [0.0, 0.0, 0.0, 0.0, 1.0]] {
                let sum: f64 = stationary(x, &batch).iter().sum();
                assert!((sum - 1.0).abs() < 1e-9, "x={x}: {sum}");
            }
        }
    }

    #[test]
    fn a_cold_page_with_batches_walks_down_from_its_batch() {
        // Loaded at 3, it is passed at 3, 2, 1 and evicted at 0: four passes, one at each counter.
        let p = stationary(1e-6, &[0.0, 0.0, 1.0, 0.0, 0.0]);
        for (counter, share) in p[1..5].iter().enumerate() {
            assert!(
                (share / 1e-6 - 1.0).abs() < 1e-4,
                "counter {counter}: {share}"
            );
        }
        assert!(p[5] < 1e-10 && p[6] < 1e-10);
    }

    /// One page, simulated: an independent statement of the same rules.
    #[test]
    fn agrees_with_a_simulated_page() {
        let batch = [0.5, 0.2, 0.1, 0.1, 0.1];
        let x = 0.8;
        let mut seed = 88_172_645_463_325_252u64;
        let mut uniform = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut time = [0.0; OUTCOMES];
        let mut state: Option<(usize, f64)> = None; // counter, time to the next pass in passes
        for _ in 0..2_000_000 {
            let mut wait = -uniform().max(1e-300).ln() / x;
            let mut size = 1;
            let mut u = uniform();
            for p in batch {
                if u < p {
                    break;
                }
                u -= p;
                size += 1;
            }
            while let Some((counter, left)) = state {
                if left > wait {
                    time[counter + 1] += wait;
                    state = Some(((counter + size).min(5), left - wait));
                    wait = -1.0;
                    break;
                }
                time[counter + 1] += left;
                wait -= left;
                state = counter.checked_sub(1).map(|c| (c, 1.0));
            }
            if wait >= 0.0 && state.is_none() {
                time[0] += wait;
                state = Some((size.min(5), 1.0));
            }
        }
        let total: f64 = time.iter().sum();
        for (c, p) in stationary(x, &batch).iter().enumerate() {
            assert!(
                (p - time[c] / total).abs() < 3e-3,
                "outcome {c}: {p} against {}",
                time[c] / total
            );
        }
    }
}
