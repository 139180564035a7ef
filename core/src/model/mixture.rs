//! Infer a distribution from observations: the nonparametric maximum-likelihood mixture, by EM.
//!
//! A class of observations (for example "seen three times at counter 1, absent otherwise") has a likelihood under
//! each point of a grid of rates; the weights of the grid points that make the observed classes most likely are
//! found by expectation and maximisation (Dempster, Laird and Rubin 1977; for mixtures Laird 1978). Steps are
//! accelerated by squared extrapolation (Varadhan and Roland 2008, scheme S3), which keeps the likelihood rising
//! because a step that lowers it falls back to plain EM.

use crate::parallel;

/// Likelihoods of every class of observations at every grid point, row by row.
#[derive(Debug, Clone, Copy)]
pub struct Likelihoods<'a> {
    values: &'a [f64],
    points: usize,
}

impl<'a> Likelihoods<'a> {
    /// Wrap a row-major matrix of `values.len() / points` classes by `points` grid points.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of `points` or `points` is 0. Rows may be scaled freely, each on its own.
    pub fn new(values: &'a [f64], points: usize) -> Self {
        assert!(points > 0 && values.len() % points == 0);
        Self { values, points }
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.values.len() / self.points
    }

    fn row(&self, class: usize) -> &'a [f64] {
        &self.values[class * self.points..(class + 1) * self.points]
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// At most this many EM steps.
    pub steps: usize,
    /// Or as soon as the log-likelihood rises by less than this in a round.
    pub gain: f64,
}

/// Inner product with eight running sums, which the compiler can keep in vector registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a8.zip(b8) {
        for k in 0..8 {
            sums[k] += x[k] * y[k];
        }
    }
    sums.iter().sum::<f64>() + rest
}

fn step(like: Likelihoods<'_>, multiplicity: &[f64], weights: &[f64], next: &mut [f64]) -> f64 {
    next.fill(0.0);
    let mut log_likelihood = 0.0;
    for (class, &count) in multiplicity.iter().enumerate() {
        if count == 0.0 {
            continue;
        }
        let row = like.row(class);
        let mix = dot(row, weights).max(1e-300);
        log_likelihood += count * mix.ln();
        let factor = count / mix;
        for (n, l) in next.iter_mut().zip(row) {
            *n += factor * l;
        }
    }
    let mut total = 0.0;
    for (n, w) in next.iter_mut().zip(weights) {
        *n *= w;
        total += *n;
    }
    if total > 0.0 {
        for n in next.iter_mut() {
            *n /= total;
        }
    } else {
        // Nothing was seen at all: every mixture explains it.
        next.copy_from_slice(weights);
    }
    log_likelihood
}

/// Return the weights of the grid points, summing to 1, and the log-likelihood they reach.
///
/// `multiplicity[c]` counts how often class `c` was seen (fractions allowed); `start` is a guess or `None` for equal
/// weights.
///
/// # Panics
///
/// If the lengths do not fit.
pub fn weights(
    like: Likelihoods<'_>,
    multiplicity: &[f64],
    start: Option<&[f64]>,
    stop: Stop,
) -> (Vec<f64>, f64) {
    assert_eq!(multiplicity.len(), like.classes());
    let points = like.points;
    let mut w0 = start.map_or_else(|| vec![1.0 / points as f64; points], <[f64]>::to_vec);
    let (mut w1, mut w2, mut guess) = (vec![0.0; points], vec![0.0; points], vec![0.0; points]);
    let mut best = f64::NEG_INFINITY;
    let mut used = 0;
    while used < stop.steps {
        let reached = step(like, multiplicity, &w0, &mut w1);
        step(like, multiplicity, &w1, &mut w2);
        used += 2;
        let (mut r2, mut v2) = (0.0, 0.0);
        for i in 0..points {
            let r = w1[i] - w0[i];
            let v = w2[i] - w1[i] - r;
            r2 += r * r;
            v2 += v * v;
        }
        let converged = reached - best < stop.gain && used > 4;
        best = best.max(reached);
        if converged || v2 < 1e-30 {
            std::mem::swap(&mut w0, &mut w2);
            break;
        }
        let alpha = -(r2 / v2).sqrt().max(1.0);
        let mut total = 0.0;
        for i in 0..points {
            let r = w1[i] - w0[i];
            let v = w2[i] - w1[i] - r;
            guess[i] = (w0[i] - 2.0 * alpha * r + alpha * alpha * v).max(w2[i] * 1e-3);
            total += guess[i];
        }
        for g in &mut guess {
            *g /= total;
        }
        // Stabilise the extrapolated point by one EM step, and keep it only if it is no worse.
        let extrapolated = step(like, multiplicity, &guess, &mut w1);
        used += 1;
        if extrapolated >= reached {
            std::mem::swap(&mut w0, &mut w1);
        } else {
            std::mem::swap(&mut w0, &mut w2);
        }
    }
    let reached = step(like, multiplicity, &w0, &mut w1);
    (w1, reached)
}

/// [`weights`] for many vectors of multiplicities over the same classes (bootstrap), in parallel.
pub fn weights_many(
    like: Likelihoods<'_>,
    multiplicities: &[Vec<f64>],
    start: &[f64],
    stop: Stop,
) -> Vec<Vec<f64>> {
    parallel::map(multiplicities, None, |m| {
        weights(like, m, Some(start), stop).0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Stop = Stop {
        steps: 2000,
        gain: 1e-10,
    };

    #[test]
    fn finds_the_weights_that_made_the_data() {
        // Binomial(4, p) at three known points, exact expected counts: the maximum is at the true weights.
        let points = [0.1, 0.5, 0.9];
        let truth = [0.5, 0.2, 0.3];
        let choose = [1.0, 4.0, 6.0, 4.0, 1.0];
        let mut values = Vec::new();
        let mut counts = Vec::new();
        for k in 0..5 {
            let mut expected = 0.0;
            for (p, w) in points.iter().zip(truth) {
                let l = choose[k] * f64::powi(*p, k as i32) * (1.0 - p).powi(4 - k as i32);
                values.push(l);
                expected += w * l;
            }
            counts.push(1e6 * expected);
        }
        let (found, _) = weights(Likelihoods::new(&values, 3), &counts, None, STOP);
        for (f, t) in found.iter().zip(truth) {
            assert!((f - t).abs() < 1e-3, "{found:?}");
        }
    }

    #[test]
    fn more_steps_never_lower_the_likelihood() {
        let values: Vec<f64> = (0..40 * 25)
            .map(|i| {
                let (class, point) = (f64::from(i / 25), f64::from(i % 25));
                (-(class / 2.0 - point).powi(2) / 8.0).exp()
            })
            .collect();
        let counts: Vec<f64> = (0..40).map(|c| f64::from((c * 7) % 11)).collect();
        let mut last = f64::NEG_INFINITY;
        for steps in [3, 10, 30, 100, 300] {
            let (w, reached) = weights(
                Likelihoods::new(&values, 25),
                &counts,
                None,
                Stop { steps, gain: 0.0 },
            );
            assert!((w.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert!(reached >= last - 1e-9, "{reached} after {last}");
            last = reached;
        }
    }
}
