//! Infer a distribution from observations: the nonparametric maximum-likelihood mixture, by EM.
//!
//! A class of observations (for example "seen three times at counter 1, absent otherwise") has a likelihood under
//! each point of a grid of rates; the weights of the grid points that make the observed classes most likely are
//! found by expectation and maximisation (Dempster, Laird and Rubin 1977; for mixtures Laird 1978). Steps are
//! accelerated by squared extrapolation (Varadhan and Roland 2008, scheme S3), which keeps the likelihood rising
//! because a step that lowers it falls back to plain EM.

use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut1, Axis};

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

/// Fits that climb together: one row each of multiplicities (by class) and of weights (by grid point).
///
/// All rows take the same steps, so that each step is two products of matrices; a row leaves when it has converged.
struct Climb<'a> {
    like: ArrayView2<'a, f64>,
    multiplicities: Array2<f64>,
}

impl<'a> Climb<'a> {
    fn new(like: Likelihoods<'a>, multiplicities: &[&[f64]]) -> Self {
        let mut rows = Array2::zeros((0, like.classes()));
        for row in multiplicities {
            rows.push_row(ArrayView1::from(*row))
                .expect("a row has one number for each class");
        }
        let shape = (like.classes(), like.points);
        let like = ArrayView2::from_shape(shape, like.values).expect("it was checked");
        Self {
            like,
            multiplicities: rows,
        }
    }

    /// Return the weights after one EM step from each row of weights, and the log-likelihoods of these if `judged`.
    ///
    /// The logarithms take a third of the time.
    fn step(&self, weights: &Array2<f64>, judged: bool) -> (Array2<f64>, Vec<f64>) {
        if weights.nrows() == 1 {
            return self.step_of_one(weights, judged);
        }
        let mut mixes = weights.dot(&self.like.t());
        let mut reached = Vec::with_capacity(weights.nrows());
        for (mut row, counts) in mixes.rows_mut().into_iter().zip(self.multiplicities.rows()) {
            let mut sum = 0.0;
            for (mix, &count) in row.iter_mut().zip(counts) {
                if judged && count > 0.0 {
                    sum += count * mix.max(LEAST).ln();
                }
                *mix = count / mix.max(LEAST);
            }
            reached.push(sum);
        }
        let mut next = mixes.dot(&self.like);
        for (next, weights) in next.rows_mut().into_iter().zip(weights.rows()) {
            scale(next, &weights);
        }
        (next, reached)
    }

    /// The same for a single row, which is no work for a product of matrices.
    fn step_of_one(&self, weights: &Array2<f64>, judged: bool) -> (Array2<f64>, Vec<f64>) {
        let own = weights.as_slice().expect("it is in standard layout");
        let mut next = Array2::zeros((1, own.len()));
        let sums = next.as_slice_mut().expect("it is in standard layout");
        let mut reached = 0.0;
        for (row, &count) in self.like.rows().into_iter().zip(self.multiplicities.row(0)) {
            if count == 0.0 {
                continue;
            }
            let row = row.to_slice().expect("it is in standard layout");
            let mix = dot(row, own).max(LEAST);
            if judged {
                reached += count * mix.ln();
            }
            let factor = count / mix;
            for (sum, l) in sums.iter_mut().zip(row) {
                *sum += factor * l;
            }
        }
        scale(next.row_mut(0), &weights.row(0));
        (next, vec![reached])
    }

    /// Return the weights that all rows reach from the same beginning, and their log-likelihoods.
    fn run(mut self, start: &[f64], stop: Stop) -> (Array2<f64>, Vec<f64>) {
        let rows = self.multiplicities.nrows();
        let all = self.multiplicities.clone();
        let mut found = Array2::from_shape_fn((rows, start.len()), |(_, point)| start[point]);
        let mut w0 = found.clone();
        let mut going: Vec<usize> = (0..rows).collect();
        let mut best = vec![f64::NEG_INFINITY; rows];
        let mut used = 0;
        while used < stop.steps && !going.is_empty() {
            let (w1, reached) = self.step(&w0, true);
            let (w2, _) = self.step(&w1, false);
            used += 2;
            let mut stays = Vec::with_capacity(going.len());
            let mut guess = w2.clone();
            for (at, &row) in going.iter().enumerate() {
                let converged = reached[at] - best[at] < stop.gain && used > 4;
                best[at] = best[at].max(reached[at]);
                let steps = [&w0, &w1, &w2].map(|w| w.row(at));
                if !converged && extrapolate(steps, guess.row_mut(at)) {
                    stays.push(at);
                } else {
                    found.row_mut(row).assign(&w2.row(at));
                }
            }
            if stays.len() < going.len() {
                let keep = |from: &Array2<f64>| from.select(Axis(0), &stays);
                self.multiplicities = keep(&self.multiplicities);
                guess = keep(&guess);
                going = stays.iter().map(|&at| going[at]).collect();
                best = stays.iter().map(|&at| best[at]).collect();
                if going.is_empty() {
                    break;
                }
            }
            // Stabilise the extrapolated points by one EM step, and keep those that are no worse.
            let (steady, extrapolated) = self.step(&guess, true);
            used += 1;
            w0 = steady;
            for (at, &before) in stays.iter().enumerate() {
                if extrapolated[at] < reached[before] {
                    w0.row_mut(at).assign(&w2.row(before));
                }
            }
        }
        for (at, &row) in going.iter().enumerate() {
            found.row_mut(row).assign(&w0.row(at));
        }
        self.multiplicities = all;
        self.step(&found, true)
    }
}

/// The least likelihood of a class, in place of 0.
const LEAST: f64 = 1e-300;

/// Multiply what classes say of the points by the weights, and make the sum 1; nothing seen is explained by every mixture.
fn scale(mut next: ArrayViewMut1<'_, f64>, weights: &ArrayView1<'_, f64>) {
    next *= weights;
    let total = next.sum();
    if total > 0.0 {
        next /= total;
    } else {
        next.assign(weights);
    }
}

/// Write the point that three successive ones lead to, with sum 1; return whether there is one.
fn extrapolate([w0, w1, w2]: [ArrayView1<'_, f64>; 3], mut guess: ArrayViewMut1<'_, f64>) -> bool {
    let change = |i: usize| {
        let r = w1[i] - w0[i];
        (r, w2[i] - w1[i] - r)
    };
    let (mut r2, mut v2) = (0.0, 0.0);
    for (r, v) in (0..guess.len()).map(change) {
        r2 += r * r;
        v2 += v * v;
    }
    if v2 < 1e-30 {
        return false;
    }
    let alpha = -(r2 / v2).sqrt().max(1.0);
    for i in 0..guess.len() {
        let (r, v) = change(i);
        guess[i] = (w0[i] - 2.0 * alpha * r + alpha * alpha * v).max(w2[i] * 1e-3);
    }
    let total = guess.sum();
    guess /= total;
    true
}

/// Return the weights of the grid points, summing to 1, and the log-likelihood of those one step before.
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
    let equal = vec![1.0 / like.points as f64; like.points];
    let climb = Climb::new(like, &[multiplicity]);
    let (found, reached) = climb.run(start.unwrap_or(&equal), stop);
    (found.into_iter().collect(), reached[0])
}

/// [`weights`] for many vectors of multiplicities over the same classes (bootstrap), in parallel.
///
/// # Panics
///
/// If the lengths do not fit.
pub fn weights_many(
    like: Likelihoods<'_>,
    multiplicities: &[Vec<f64>],
    start: &[f64],
    stop: Stop,
) -> Vec<Vec<f64>> {
    let rows: Vec<&[f64]> = multiplicities.iter().map(Vec::as_slice).collect();
    let each = rows.len().div_ceil(parallel::wanted()).max(1);
    let parts: Vec<&[&[f64]]> = rows.chunks(each).collect();
    let found = parallel::map(&parts, None, |part| {
        Climb::new(like, part).run(start, stop).0
    });
    found
        .iter()
        .flat_map(|part| part.rows())
        .map(|row| row.to_vec())
        .collect()
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

    #[test]
    fn many_at_once_are_as_each_alone() {
        let values: Vec<f64> = (0..40 * 25)
            .map(|i| {
                let (class, point) = (f64::from(i / 25), f64::from(i % 25));
                (-(class / 2.0 - point).powi(2) / 8.0).exp()
            })
            .collect();
        let like = Likelihoods::new(&values, 25);
        // One has nothing, one a single class, and all converge at different steps.
        let rows: Vec<Vec<f64>> = (0..9)
            .map(|row| {
                (0..40)
                    .map(|class| f64::from((class * 7 + row * 5) % 11 * row.min(class)))
                    .collect()
            })
            .collect();
        let start = vec![1.0 / 25.0; 25];
        for (steps, gain) in [(1, 0.0), (7, 0.0), (400, 1.0), (400, 0.01)] {
            let stop = Stop { steps, gain };
            let many = weights_many(like, &rows, &start, stop);
            assert_eq!(many.len(), rows.len());
            for (found, row) in many.iter().zip(&rows) {
                let (alone, _) = weights(like, row, Some(&start), stop);
                for (f, a) in found.iter().zip(alone) {
                    assert!((f - a).abs() < 1e-6, "{found:?}");
                }
            }
        }
        assert!(weights_many(like, &[], &start, STOP).is_empty());
    }
}
