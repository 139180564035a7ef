//! The stationary law of a page under PostgreSQL's clock sweep.
//!
//! A page is visited by a Poisson process; the hand passes its buffer once a clock pass. With `x` the expected
//! number of visits in a clock pass, everything depends on `x` alone. A visit raises the counter by a random number of
//! steps, because real accesses come several at a time (an UPDATE pins its page again, a SELECT follows); the
//! distribution of that number is a [`Batch`]. The load itself is the first visit and leaves the counter at the size of
//! its batch (bufmgr.c: BufferAlloc sets 1, PinBuffer adds 1 up to BM_MAX_USAGE_COUNT = 5; both numbers are parameters,
//! [`Policy`]), the hand subtracts 1 or evicts at 0 (freelist.c: StrategyGetBuffer), and the hand first visits the page one clock pass after its load.
//!
//! A counter never falls between two passes, so after as many visits as the cap is high it is there whatever the
//! batches were: the evolution over a clock pass is a sum of that many terms, exact and stable for every `x`.

use crate::rules::Policy;

/// The highest cap of the usage count that there is a law for.
pub const MOST_USAGE_CAP: u8 = 7;

/// The chain seen at the hand's passes is taken at this rate at most: its exponential must not vanish.
const CHAIN_RATE_CAP: f64 = 100.0;

/// The probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses.
pub type Batch = [f64; 5];

/// Every visit is a single access.
pub const SINGLE: Batch = [1.0, 0.0, 0.0, 0.0, 0.0];

/// Visits that bring a geometric number of accesses, P(b = k) = (1 − q) q^(k−1), cut at 5.
pub fn geometric_batch(q: f64) -> Batch {
    let mut batch = [0.0; 5];
    for (k, p) in batch.iter_mut().enumerate() {
        *p = (1.0 - q) * q.powi(k as i32);
    }
    batch[4] = q.powi(4);
    batch
}

pub(super) type Matrix<const STATES: usize> = [[f64; STATES]; STATES];

/// P(N > k) and P(N = k) for k below the cap, N Poisson with mean x, accurate for small x too; a last 0 follows.
fn poisson<const STATES: usize>(x: f64) -> ([f64; STATES], [f64; STATES]) {
    let cap = STATES - 1;
    let mut mass = [0.0; STATES];
    let mut p = (-x).exp();
    for (k, m) in mass[..cap].iter_mut().enumerate() {
        if k > 0 {
            p *= x / k as f64;
        }
        *m = p;
    }
    let mut tail = [0.0; STATES];
    if x < 4.0 {
        // Sum the tail itself: 1 − Σ would cancel.
        let mut term = mass[cap - 1];
        let mut beyond = 0.0;
        for k in cap..60 {
            term *= x / k as f64;
            let sum = beyond + term;
            if sum <= beyond {
                // Later terms are smaller: they would change nothing either.
                break;
            }
            beyond = sum;
        }
        for k in (0..cap).rev() {
            tail[k] = beyond;
            beyond += mass[k];
        }
    } else {
        let mut below = 0.0;
        for k in 0..cap {
            below += mass[k];
            tail[k] = (1.0 - below).max(0.0);
        }
    }
    (mass, tail)
}

/// The powers of the matrix that one visit applies to the counter, as many as the cap is high; a last 0 follows.
fn visit_powers<const STATES: usize>(batch: &Batch) -> [Matrix<STATES>; STATES] {
    let cap = STATES - 1;
    let mut one = [[0.0; STATES]; STATES];
    for (counter, row) in one.iter_mut().enumerate() {
        for (step, p) in batch.iter().enumerate() {
            row[(counter + step + 1).min(cap)] += p;
        }
    }
    let mut powers = [[[0.0; STATES]; STATES]; STATES];
    for (i, row) in powers[0].iter_mut().enumerate() {
        row[i] = 1.0;
    }
    for k in 1..cap {
        for i in 0..STATES {
            for j in 0..STATES {
                powers[k][i][j] = (0..STATES).map(|m| powers[k - 1][i][m] * one[m][j]).sum();
            }
        }
    }
    powers
}

/// Σ_k weight_k · power_k, what remains of the weight going to the cap.
fn blend<const STATES: usize>(
    powers: &[Matrix<STATES>; STATES],
    weights: &[f64; STATES],
    rest: f64,
) -> Matrix<STATES> {
    let mut out = [[0.0; STATES]; STATES];
    for (power, w) in powers[..STATES - 1].iter().zip(weights) {
        for i in 0..STATES {
            for j in i..STATES {
                out[i][j] += w * power[i][j];
            }
        }
    }
    for row in &mut out {
        row[STATES - 1] += rest;
    }
    out
}

/// 2^300: a division by it rounds nothing.
const LARGE: f64 = (1_u128 << 100) as f64 * (1_u128 << 100) as f64 * (1_u128 << 100) as f64;

/// The stationary law of a Markov chain by state reduction without subtraction, so that even probabilities of 1e-100
/// keep their leading digits (Grassmann, Taksar and Heyman 1985).
pub(super) fn stationary_of<const STATES: usize>(mut chain: Matrix<STATES>) -> [f64; STATES] {
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
        while law[n] > LARGE {
            law = law.map(|p| p / LARGE);
        }
    }
    let total: f64 = law.iter().sum();
    law.map(|p| p / total)
}

/// Return the probabilities, at a random time, that a page with `x` visits per pass is absent or has each counter.
///
/// For single accesses this is the closed form P(absent) = 1/(1 + xV), V the expected clock passes of a residence;
/// batches replace V by the solution of a chain over the counters, seen at the hand's passes. The numbers sum to 1; there
/// are two more of them than the cap. The number of hands does not matter: each page is passed by one of them.
///
/// # Panics
///
/// Where the cap is above [`MOST_USAGE_CAP`]; otherwise never for finite `x > 0` and a batch that sums to 1.
pub fn stationary(x: f64, batch: &Batch, policy: Policy) -> Vec<f64> {
    stationary_table(&[x], batch, policy)
}

/// [`stationary`] for many rates, one row after the other.
///
/// # Panics
///
/// As for [`stationary`].
pub fn stationary_table(rates: &[f64], batch: &Batch, policy: Policy) -> Vec<f64> {
    let admission = usize::from(policy.admission);
    // The states are a constant in each, so that the small matrices stay in registers.
    match policy.usage_cap {
        1 => table::<2>(rates, batch, admission),
        2 => table::<3>(rates, batch, admission),
        3 => table::<4>(rates, batch, admission),
        4 => table::<5>(rates, batch, admission),
        5 => table::<6>(rates, batch, admission),
        6 => table::<7>(rates, batch, admission),
        7 => table::<8>(rates, batch, admission),
        cap => panic!("there is no law for a cap of {cap}"),
    }
}

fn table<const STATES: usize>(rates: &[f64], batch: &Batch, admission: usize) -> Vec<f64> {
    let powers = visit_powers::<STATES>(batch);
    let mut rows = Vec::with_capacity(rates.len() * (STATES + 1));
    for &x in rates {
        let (absent, counters) = stationary_with(x, batch, admission, &powers);
        rows.push(absent);
        rows.extend(counters);
    }
    rows
}

fn stationary_with<const STATES: usize>(
    x: f64,
    batch: &Batch,
    admission: usize,
    powers: &[Matrix<STATES>; STATES],
) -> (f64, [f64; STATES]) {
    let cap = STATES - 1;
    let (mass, tail) = poisson::<STATES>(x);
    // Time spent with exactly k visits behind it, as a share of the pass: ∫ P(N_xt = k) dt = P(N_x > k) / x,
    // and a pass weighs by its length.
    let spent = tail.map(|t| t / x);
    let during = blend(powers, &spent, (1.0 - spent.iter().sum::<f64>()).max(0.0));
    let (mass, tail) = if x > CHAIN_RATE_CAP {
        poisson(CHAIN_RATE_CAP)
    } else {
        (mass, tail)
    };
    let at_pass = blend(powers, &mass, tail[cap - 1]);
    // Seen just after each pass; an eviction is followed by the start of the next residence.
    let mut next_pass = [[0.0; STATES]; STATES];
    for i in 0..STATES {
        next_pass[i][..cap].copy_from_slice(&at_pass[i][1..]);
        for (more, p) in batch.iter().enumerate() {
            next_pass[i][(admission + more).min(cap)] += at_pass[i][0] * p;
        }
    }
    let law = stationary_of(next_pass);
    let evicted: f64 = (0..STATES).map(|s| law[s] * at_pass[s][0]).sum();
    // A residence lasts 1 / evicted passes, the absence after it 1 / x.
    let resident = x / (x + evicted);
    let mut counters = [0.0; STATES];
    for (counter, p) in counters.iter_mut().enumerate() {
        let time: f64 = (0..STATES).map(|s| law[s] * during[s][counter]).sum();
        *p = resident * time;
    }
    (evicted / (x + evicted), counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Policy = Policy::of_version(18);

    fn policy(usage_cap: u8, admission: u8) -> Policy {
        Policy {
            usage_cap,
            admission,
            ..USUAL
        }
    }

    /// The closed form for single accesses, written independently of the chain.
    fn closed_form(x: f64) -> [f64; 7] {
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
        let mut out = [0.0; 7];
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
            let chain = stationary(x, &SINGLE, USUAL);
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
                for cap in 1..=MOST_USAGE_CAP {
                    let sum: f64 = stationary(x, &batch, policy(cap, 1)).iter().sum();
                    assert!((sum - 1.0).abs() < 1e-9, "x={x} cap={cap}: {sum}");
                }
            }
        }
    }

    #[test]
    fn a_cold_page_with_batches_walks_down_from_its_batch() {
        // Loaded at 3, it is passed at 3, 2, 1 and evicted at 0: four passes, one at each counter.
        let p = stationary(1e-6, &[0.0, 0.0, 1.0, 0.0, 0.0], USUAL);
        for (counter, share) in p[1..5].iter().enumerate() {
            assert!(
                (share / 1e-6 - 1.0).abs() < 1e-4,
                "counter {counter}: {share}"
            );
        }
        assert!(p[5] < 1e-10 && p[6] < 1e-10);
    }

    /// The second chance in closed form: a clock pass without a visit clears the bit, another one evicts.
    #[test]
    fn one_bit_agrees_with_its_closed_form() {
        for x in [0.01f64, 0.3, 1.0, 3.0, 8.0] {
            // A residence has a first pass, which ends with the bit cleared, then passes begun at 0 until one has no visit.
            let later = x.exp();
            let passes = 1.0 + later;
            let absent = 1.0 / (1.0 + x * passes);
            // In a pass begun at 0 the bit is unset until the first visit: (1 - e^-x) / x of it.
            let unset = later * (1.0 - (-x).exp()) / x;
            let expected = [absent, absent * x * unset, absent * x * (passes - unset)];
            let found = stationary(x, &SINGLE, policy(1, 1));
            assert_eq!(found.len(), 3);
            for (p, q) in found.iter().zip(expected) {
                assert!(
                    (p - q).abs() < 1e-9,
                    "x={x}: {found:?} against {expected:?}"
                );
            }
        }
    }

    /// One page, simulated: an independent statement of the same rules.
    fn simulated(x: f64, batch: &Batch, cap: usize, admission: usize) -> Vec<f64> {
        let mut seed = 88_172_645_463_325_252u64;
        let mut uniform = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut time = vec![0.0; cap + 2];
        let mut state: Option<(usize, f64)> = None; // counter, time to the next pass in passes
        for _ in 0..2_000_000 {
            let mut wait = -uniform().max(1e-300).ln() / x;
            let mut size = 1;
            let mut u = uniform();
            for p in &batch[..4] {
                if u < *p {
                    break;
                }
                u -= p;
                size += 1;
            }
            while let Some((counter, left)) = state {
                if left > wait {
                    time[counter + 1] += wait;
                    state = Some(((counter + size).min(cap), left - wait));
                    wait = -1.0;
                    break;
                }
                time[counter + 1] += left;
                wait -= left;
                state = counter.checked_sub(1).map(|c| (c, 1.0));
            }
            if wait >= 0.0 && state.is_none() {
                time[0] += wait;
                state = Some(((admission + size - 1).min(cap), 1.0));
            }
        }
        let total: f64 = time.iter().sum();
        time.into_iter().map(|t| t / total).collect()
    }

    #[test]
    fn agrees_with_a_simulated_page() {
        let several = [0.5, 0.2, 0.1, 0.1, 0.1];
        for (cap, admission) in [(1, 1), (1, 0), (3, 1), (3, 2), (5, 1), (5, 0), (7, 1)] {
            for x in [0.2, 0.8, 2.0] {
                for batch in [SINGLE, several] {
                    let law = stationary(x, &batch, policy(cap as u8, admission as u8));
                    let found = simulated(x, &batch, cap, admission);
                    assert_eq!(law.len(), cap + 2);
                    for (c, (p, q)) in law.iter().zip(&found).enumerate() {
                        assert!(
                            (p - q).abs() < 3e-3,
                            "cap={cap} x={x} outcome {c}: {p} against {q}"
                        );
                    }
                }
            }
        }
    }
}
