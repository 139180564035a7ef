//! The clock's law and the mixture fit, for numpy arrays.

use numpy::ndarray::Array2;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3,
};
use pgsweep_core::model::clock::{stationary_table, Batch, MOST_USAGE_CAP};
use pgsweep_core::model::mixture::{weights, weights_many, Likelihoods, Stop};
use pgsweep_core::model::paths::{self, Sightings, Step, COUNTS, TURNS};
use pgsweep_core::model::scans::{states_before, ScannedPage, Scans};
use pgsweep_core::model::visits::{draw_accesses, Classes};
use pgsweep_core::rules::Policy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{copied, maybe_copied};

/// The address of each access, and when it is, in seconds.
type Accesses<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f64>>);

/// The likelihoods of paths, and how many pages took each.
type Paths<'py> = (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray1<f64>>);

fn batch_from(values: &[f64]) -> PyResult<Batch> {
    let batch: Batch = values
        .try_into()
        .map_err(|_| PyValueError::new_err("batch must hold 5 probabilities"))?;
    let sum: f64 = batch.iter().sum();
    if batch.iter().any(|p| !p.is_finite() || *p < 0.0) || (sum - 1.0).abs() > 1e-6 {
        return Err(PyValueError::new_err(
            "batch must be probabilities that sum to 1",
        ));
    }
    Ok(batch)
}

/// The part of a policy that the law of a page depends on; hands and free list do not enter it.
fn policy_of(usage_cap: u8, admission: u8) -> PyResult<Policy> {
    if !(1..=MOST_USAGE_CAP).contains(&usage_cap) || admission > usage_cap {
        return Err(PyValueError::new_err(format!(
            "the law is known for caps of 1 to {MOST_USAGE_CAP} and an admission within the cap"
        )));
    }
    Ok(Policy {
        usage_cap,
        admission,
        hands: 1,
        free_list: true,
    })
}

fn check_shapes(
    like: &PyReadonlyArray2<'_, f64>,
    classes: usize,
    start: Option<usize>,
) -> PyResult<()> {
    let shape = like.as_array().dim();
    if shape.1 == 0 || shape.0 != classes {
        return Err(PyValueError::new_err(
            "one multiplicity per class of likelihoods is needed",
        ));
    }
    if start.is_some_and(|points| points != shape.1) {
        return Err(PyValueError::new_err(
            "one starting weight per grid point is needed",
        ));
    }
    Ok(())
}

/// Return the probabilities of absent and each counter from 0 (columns) for each rate in visits per clock pass (rows).
#[pyfunction]
#[pyo3(signature = (rates, batch, *, usage_cap=5, admission=1))]
pub fn clock_law<'py>(
    py: Python<'py>,
    rates: PyReadonlyArray1<'py, f64>,
    batch: PyReadonlyArray1<'py, f64>,
    usage_cap: u8,
    admission: u8,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let batch = batch_from(batch.as_slice()?)?;
    let rates = copied(&rates)?;
    if rates.iter().any(|x| !x.is_finite() || *x <= 0.0) {
        return Err(PyValueError::new_err("rates must be positive and finite"));
    }
    let policy = policy_of(usage_cap, admission)?;
    let flat = py.detach(|| stationary_table(&rates, &batch, policy));
    let table = Array2::from_shape_vec((rates.len(), usize::from(usage_cap) + 2), flat)
        .map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(table.into_pyarray(py))
}

/// Return the maximum-likelihood weights of the grid points and the log-likelihood they reach.
#[pyfunction]
#[pyo3(signature = (likelihoods, multiplicity, *, start=None, steps=600, gain=1e-4))]
pub fn mixture_weights<'py>(
    py: Python<'py>,
    likelihoods: PyReadonlyArray2<'py, f64>,
    multiplicity: PyReadonlyArray1<'py, f64>,
    start: Option<PyReadonlyArray1<'py, f64>>,
    steps: usize,
    gain: f64,
) -> PyResult<(Bound<'py, PyArray1<f64>>, f64)> {
    let start = maybe_copied(start.as_ref())?;
    let multiplicity = copied(&multiplicity)?;
    check_shapes(
        &likelihoods,
        multiplicity.len(),
        start.as_ref().map(Vec::len),
    )?;
    let values = likelihoods.as_slice()?.to_vec();
    let like = Likelihoods::new(&values, likelihoods.as_array().dim().1);
    let (found, reached) =
        py.detach(|| weights(like, &multiplicity, start.as_deref(), Stop { steps, gain }));
    Ok((found.into_pyarray(py), reached))
}

/// Return one row of weights per row of multiplicities, computed in parallel from one starting point.
#[pyfunction]
#[pyo3(signature = (likelihoods, multiplicities, start, *, steps=60, gain=1e-3))]
pub fn mixture_weights_many<'py>(
    py: Python<'py>,
    likelihoods: PyReadonlyArray2<'py, f64>,
    multiplicities: PyReadonlyArray2<'py, f64>,
    start: PyReadonlyArray1<'py, f64>,
    steps: usize,
    gain: f64,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let start = copied(&start)?;
    let rows = multiplicities.as_array();
    check_shapes(&likelihoods, rows.dim().1, Some(start.len()))?;
    let values = likelihoods.as_slice()?.to_vec();
    let like = Likelihoods::new(&values, start.len());
    let owned: Vec<Vec<f64>> = rows.outer_iter().map(|r| r.to_vec()).collect();
    let found = py.detach(|| weights_many(like, &owned, &start, Stop { steps, gain }));
    let table = Array2::from_shape_vec(
        (owned.len(), start.len()),
        found.into_iter().flatten().collect(),
    )
    .map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(table.into_pyarray(py))
}

/// Return the likelihoods of the distinct paths of pages (rows) at each point of a grid, and how many pages took each.
#[pyfunction]
#[pyo3(signature = (counts, buffers, created, weights, *, hands, pool, visits, turns))]
pub fn path_likelihoods<'py>(
    py: Python<'py>,
    counts: PyReadonlyArray2<'py, i16>,
    buffers: PyReadonlyArray2<'py, i32>,
    created: PyReadonlyArray1<'py, bool>,
    weights: PyReadonlyArray1<'py, f64>,
    hands: PyReadonlyArray1<'py, i64>,
    pool: i64,
    visits: PyReadonlyArray3<'py, f64>,
    turns: PyReadonlyArray3<'py, f64>,
) -> PyResult<Paths<'py>> {
    let points = turns.as_array().dim().0;
    let (visits_shape, turns_shape) = (visits.as_array().dim(), turns.as_array().dim());
    let (counts, shape) = (copied(&counts)?, counts.as_array().dim());
    let (created, weights) = (copied(&created)?, copied(&weights)?);
    let hands = copied(&hands)?;
    let fits = shape == (weights.len(), hands.len())
        && shape == buffers.as_array().dim()
        && created.len() == weights.len()
        && visits_shape == (points, COUNTS, COUNTS)
        && turns_shape == (points, TURNS, TURNS);
    let ascend = !hands.is_empty() && hands.windows(2).all(|pair| pair[0] <= pair[1]);
    let buffers = copied(&buffers)?;
    let known = counts
        .iter()
        .all(|count| (-1..COUNTS as i16).contains(count));
    if !fits || !ascend || !known || points == 0 || pool <= 0 {
        return Err(PyValueError::new_err(
            "pages need a usage count and a buffer in each snapshot, the hand only moves on, and a step is that of \
             the usage counts at each point",
        ));
    }
    let (visits, turns) = (copied(&visits)?, copied(&turns)?);
    let found = py.detach(|| {
        let seen = Sightings {
            counts: &counts,
            buffers: &buffers,
            created: &created,
            weights: &weights,
            hands: &hands,
            pool,
        };
        let step = Step {
            visits: &visits,
            turns: &turns,
        };
        paths::path_likelihoods(seen, step)
    });
    let table = Array2::from_shape_vec((found.pages.len(), points), found.like)
        .map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok((table.into_pyarray(py), found.pages.into_pyarray(py)))
}

/// Draw in which state the beginning of a trace finds pages that scans visit: 0 for absent, or 1 plus the usage count.
#[pyfunction(name = "states_before")]
#[pyo3(signature = (first_seconds, rates, pass_seconds, gaps_seconds, batch, *, rounds, duration_seconds, seed, usage_cap=5, admission=1))]
pub fn states_before_trace<'py>(
    py: Python<'py>,
    first_seconds: PyReadonlyArray1<'py, f64>,
    rates: PyReadonlyArray1<'py, f64>,
    pass_seconds: PyReadonlyArray1<'py, f64>,
    gaps_seconds: PyReadonlyArray1<'py, f64>,
    batch: PyReadonlyArray1<'py, f64>,
    rounds: f64,
    duration_seconds: f64,
    seed: u64,
    usage_cap: u8,
    admission: u8,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let first = copied(&first_seconds)?;
    let (rates, passes) = (copied(&rates)?, copied(&pass_seconds)?);
    if rates.len() != first.len() || passes.len() != first.len() {
        return Err(PyValueError::new_err(
            "one rate and one clock pass per page is needed",
        ));
    }
    if passes
        .iter()
        .any(|seconds| seconds.is_nan() || *seconds <= 0.0)
    {
        return Err(PyValueError::new_err("a clock pass must take some time"));
    }
    let gaps = copied(&gaps_seconds)?;
    let scans = Scans {
        gaps_seconds: &gaps,
        rounds,
        duration_seconds,
        batch: batch_from(&copied(&batch)?)?,
        policy: policy_of(usage_cap, admission)?,
    };
    let pages: Vec<ScannedPage> = first
        .iter()
        .zip(rates)
        .zip(passes)
        .map(|((&first_seconds, rate), pass_seconds)| ScannedPage {
            first_seconds,
            rate,
            pass_seconds,
        })
        .collect();
    let found = py.detach(|| states_before(&pages, scans, seed));
    Ok(found.into_pyarray(py))
}

/// Draw the accesses of visits at random times to classes of pages; return addresses and seconds.
#[pyfunction]
#[pyo3(signature = (visits, begins, batches, addresses, *, count, seconds, seed))]
pub fn drawn_accesses<'py>(
    py: Python<'py>,
    visits: PyReadonlyArray1<'py, f64>,
    begins: PyReadonlyArray1<'py, i64>,
    batches: PyReadonlyArray2<'py, f64>,
    addresses: PyReadonlyArray1<'py, u32>,
    count: usize,
    seconds: f64,
    seed: u64,
) -> PyResult<Accesses<'py>> {
    let (visits, addresses) = (copied(&visits)?, copied(&addresses)?);
    if !visits.iter().all(|v| v.is_finite() && *v >= 0.0) || !visits.iter().sum::<f64>().is_finite()
    {
        return Err(PyValueError::new_err(
            "visits must be finite and not negative",
        ));
    }
    let begins = copied(&begins)?;
    let whole = begins.len() == visits.len() + 1
        && begins[0] == 0
        && begins.windows(2).all(|pair| pair[0] <= pair[1])
        && begins.last() == Some(&(addresses.len() as i64));
    let begins: Vec<usize> = begins.iter().map(|begin| *begin as usize).collect();
    let batches: Vec<_> = batches
        .as_array()
        .outer_iter()
        .map(|batch| batch_from(&batch.to_vec()))
        .collect::<PyResult<_>>()?;
    if !whole || batches.len() != visits.len() {
        return Err(PyValueError::new_err(
            "each class needs a batch law, and its pages must be a part of the addresses",
        ));
    }
    let found = py.detach(|| {
        let classes = Classes {
            visits: &visits,
            begins: &begins,
            batches: &batches,
            addresses: &addresses,
        };
        draw_accesses(classes, count, seconds, seed)
    });
    Ok((
        found.addresses.into_pyarray(py),
        found.seconds.into_pyarray(py),
    ))
}
