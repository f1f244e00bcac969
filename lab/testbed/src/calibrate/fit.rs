//! Least squares with coefficients that are not negative, and robust statistics of repeated measurements.

/// One measurement: how often each kind of work was done, and the processor time that it took together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Observation<const N: usize> {
    pub(super) work: [f64; N],
    pub(super) time_ns: f64,
}

/// The costs of each kind of work, none of them negative, which best explain the observations. Errors are relative to each
/// observation's time, so that a short observation counts as much as a long one.
///
/// `noise` is the relative error of an observation. Loads that differ by less than it cannot tell two kinds of work apart, and
/// plain least squares would then give all of their time to one of them, by chance. Ridge regression (Hoerl and Kennard,
/// Technometrics 12(1), 1970) divides it evenly instead: in units of the time that a kind of work explains, the penalty is the square of
/// `noise` over [`TYPICAL_SHARE`], which is the optimum of Bayesian linear regression with such a prior. Without noise nothing is penalised.
///
/// It is coordinate descent (Franc, Hlavac and Navara, "Sequential coordinate-wise algorithm for the non-negative least
/// squares problem", CAIP 2005), which converges for any start because the problem is convex.
pub(super) fn non_negative_costs<const N: usize>(
    observations: &[Observation<N>],
    noise: f64,
) -> [f64; N] {
    let penalty = (noise / TYPICAL_SHARE).powi(2);
    let rows: Vec<[f64; N]> = (observations.iter())
        .filter(|it| it.time_ns > 0.0)
        .map(|it| it.work.map(|work| work / it.time_ns))
        .collect();
    // Columns are scaled to unit length, so that bytes and system calls converge alike.
    let mut scale = [0.0_f64; N];
    for (column, scale) in scale.iter_mut().enumerate() {
        *scale = rows.iter().map(|row| row[column] * row[column]).sum::<f64>().sqrt();
    }
    let mut costs = [0.0_f64; N];
    for _ in 0..20_000 {
        let mut moved = 0.0_f64;
        for column in 0..N {
            if scale[column] == 0.0 {
                continue;
            }
            let gradient: f64 = (rows.iter())
                .map(|row| {
                    let explained: f64 =
                        row.iter().zip(&costs).map(|(work, cost)| work * cost).sum();
                    row[column] * (1.0 - explained)
                })
                .sum();
            let square = scale[column] * scale[column];
            let step = (gradient - penalty * square * costs[column]) / (square * (1.0 + penalty));
            let next = (costs[column] + step).max(0.0);
            moved = moved.max((next - costs[column]).abs() * scale[column]);
            costs[column] = next;
        }
        if moved < 1e-12 {
            break;
        }
    }
    // The penalty makes all costs a little too small together: one factor, by least squares, corrects their sum.
    let explained: Vec<f64> = (rows.iter())
        .map(|row| row.iter().zip(&costs).map(|(work, cost)| work * cost).sum())
        .collect();
    let square: f64 = explained.iter().map(|it: &f64| it * it).sum();
    let factor = if square > 0.0 { explained.iter().sum::<f64>() / square } else { 1.0 };
    costs.map(|cost| cost * factor)
}

/// The median of some values; zero if there are none.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value at this share, linear between neighbours; zero if there are none.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * (at - at.floor())
}

/// The spread of repeated measurements: the distance of the quartiles, as a share of the median.
pub(super) fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if middle <= 0.0 {
        return 0.0;
    }
    (quantile(values, 0.75) - quantile(values, 0.25)) / middle
}

/// The share of its time that a kind of work explains, as the standard deviation of the prior: with about ten kinds, a
/// few of them important in each load, a third is typical. Rackweave's choice.
const TYPICAL_SHARE: f64 = 1.0 / 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(work: [f64; 4], costs: [f64; 4]) -> Observation<4> {
        let time_ns = work.iter().zip(costs).map(|(work, cost)| work * cost).sum();
        Observation { work, time_ns }
    }

    /// System calls, messages, packets and bytes of six loads.
    const LOADS: [[f64; 4]; 6] = [
        [1000.0, 1000.0, 1000.0, 180_000.0],
        [1000.0, 1000.0, 1000.0, 1_500_000.0],
        [1000.0, 1000.0, 7000.0, 10_500_000.0],
        [100.0, 1600.0, 1600.0, 290_000.0],
        [5000.0, 5000.0, 5000.0, 900_000.0],
        [400.0, 1000.0, 7000.0, 10_500_000.0],
    ];

    #[test]
    fn known_costs_are_found() {
        for costs in [[4000.0, 900.0, 700.0, 0.3], [2500.0, 0.0, 1200.0, 0.0]] {
            let observations = LOADS.map(|work| observed(work, costs));
            let found = non_negative_costs(&observations, 0.0);
            for (found, cost) in found.into_iter().zip(costs) {
                assert!((found - cost).abs() < 0.01 * cost.max(1.0), "{found} for {cost}");
            }
        }
    }

    #[test]
    fn noise_of_a_few_percent_does_not_turn_costs_negative_and_predicts_as_well() {
        let costs = [4000.0, 50.0, 700.0, 0.02];
        let mut rng = rackweave_core::Rng::stream(3, 0, 0, "fit");
        for _ in 0..50 {
            let observations = LOADS.map(|work| {
                let exact = observed(work, costs);
                Observation { time_ns: exact.time_ns * (0.97 + 0.06 * rng.unit()), ..exact }
            });
            let found = non_negative_costs(&observations, 0.017);
            assert!(found.iter().all(|cost| *cost >= 0.0));
            for work in LOADS {
                let predicted = observed(work, found).time_ns / observed(work, costs).time_ns;
                assert!((0.95..1.05).contains(&predicted), "{predicted}");
            }
        }
    }

    /// A receiver that is woken for nearly every message, as on an idle machine.
    #[test]
    fn work_that_the_loads_cannot_tell_apart_is_charged_evenly() {
        let mut rng = rackweave_core::Rng::stream(5, 0, 0, "fit");
        for _ in 0..50 {
            let observations: Vec<_> = (0..6)
                .map(|load| {
                    let messages = 1000.0 * f64::from(1 << load);
                    let work = [messages, messages * (1.0 - 0.02 * rng.unit())];
                    let time_ns = messages * 20_000.0 * (0.9 + 0.2 * rng.unit());
                    Observation { work, time_ns }
                })
                .collect();
            let [one, other] = non_negative_costs(&observations, 0.06);
            assert!((0.5..2.0).contains(&(one / other)), "{one} and {other}");
            assert!((0.85..1.15).contains(&((one + other) / 20_000.0)), "{one} and {other}");
        }
    }

    #[test]
    fn the_spread_ignores_one_outlier_and_reports_a_machine_under_load() {
        assert_eq!(median(&[3.0, 1.0, 100.0, 2.0, 4.0]), 3.0);
        assert!(spread(&[100.0, 101.0, 99.0, 100.0, 900.0]) < 0.02);
        assert!(spread(&[100.0, 200.0, 60.0, 300.0, 130.0]) > 0.5);
        assert_eq!((median(&[]), spread(&[0.0, 0.0])), (0.0, 0.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.9), 4.6);
    }
}
