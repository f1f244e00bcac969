//! A mixed-integer linear program with the same optimum, solved by another solver.

use good_lp::{
    Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable, variables,
};
use rackweave_core::{Rate, Rng, Span};
use rackweave_rackless::cost::{Reconfiguration, Scope};
use rackweave_rackless::demand::{Flow, JobId, Period, Upload};
use rackweave_rackless::fabric::{Architecture, Fabric};
use rackweave_rackless::plan::{Algorithm, Options, plan};
use rackweave_rackless::pod::{Pod, Tor};

/// Milliseconds per megabyte at 10 Gbps.
const MS: f64 = 0.8;

struct Model {
    variables: ProblemVariables,
    constraints: Vec<good_lp::Constraint>,
}

impl Model {
    fn binary(&mut self) -> Variable {
        self.variables.add(variable().binary())
    }

    /// A variable that is 1 if and only if all of these are.
    fn and(&mut self, all: &[Expression]) -> Variable {
        let result = self.variables.add(variable().min(0).max(1));
        let mut sum = Expression::from(1.0 - all.len() as f64);
        for one in all {
            self.constraints.push((Expression::from(result) - one.clone()).leq(0.0));
            sum += one.clone();
        }
        self.constraints.push((sum - result).leq(0.0));
        result
    }
}

/// The least total in milliseconds, with all ports dark during a reconfiguration. Uploads have two workers, so that their
/// aggregation is a product of binary variables.
fn optimum(fabric: &Fabric, periods: &[Period], delay: f64) -> f64 {
    let tors = fabric.pod().tors();
    let servers = fabric.pod().servers() as usize;
    let mut model = Model { variables: variables!(), constraints: Vec::new() };
    let mut objective = Expression::from(0.0);
    let mut previous: Option<Vec<Vec<Variable>>> = None;
    for period in periods {
        let place: Vec<Vec<Variable>> =
            (0..servers).map(|_| tors.iter().map(|_| model.binary()).collect()).collect();
        for row in &place {
            let sum: Expression = row.iter().sum();
            model.constraints.push(sum.eq(1.0));
        }
        for (rack, tor) in tors.iter().enumerate() {
            let sum: Expression = place.iter().map(|row| row[rack]).sum();
            model.constraints.push(sum.leq(f64::from(tor.ports)));
        }
        // 1 if any server moves.
        let moves = model.variables.add(variable().min(0).max(1));
        for (server, row) in place.iter().enumerate() {
            for (rack, &now) in row.iter().enumerate() {
                let before = match &previous {
                    Some(place) => Expression::from(place[server][rack]),
                    None => {
                        let initial = usize::from(fabric.initial().tor_of()[server]) == rack;
                        Expression::from(f64::from(u8::from(initial)))
                    }
                };
                model.constraints.push((Expression::from(now) - before - moves).leq(0.0));
            }
        }
        let time = model.variables.add(variable().min(0));
        objective += time + delay * moves;
        let mut out = vec![Expression::from(0.0); servers];
        let mut inward = out.clone();
        let mut up = vec![Expression::from(0.0); tors.len()];
        let mut down = up.clone();
        let is = |server: u32, rack: usize| Expression::from(place[server as usize][rack]);
        let not = |server: u32, rack: usize| 1.0 - is(server, rack);
        for flow in period.flows() {
            let ms = flow.bytes as f64 / 1e6 * MS;
            out[flow.src as usize] += ms;
            inward[flow.dst as usize] += ms;
            for rack in 0..tors.len() {
                let leaves = model.and(&[is(flow.src, rack), not(flow.dst, rack)]);
                let enters = model.and(&[not(flow.src, rack), is(flow.dst, rack)]);
                up[rack] += ms * leaves;
                down[rack] += ms * enters;
            }
        }
        for upload in period.uploads() {
            let master = upload.master();
            let [(a, bytes_a), (b, bytes_b)] = upload.workers()[..] else { panic!("two workers") };
            let ms = |bytes: u64| bytes as f64 / 1e6 * MS;
            let saved = ms(bytes_a + bytes_b - upload.distinct());
            inward[master as usize] += ms(bytes_a + bytes_b);
            // Aggregated in the rack of both workers, or in the master's: the programmable ToR is 0.
            let together = model.and(&[is(a, 0), is(b, 0)]);
            let apart = model.and(&[1.0 - Expression::from(together), is(master, 0)]);
            inward[master as usize] -= saved * together + saved * apart;
            for (worker, bytes) in [(a, bytes_a), (b, bytes_b)] {
                out[worker as usize] += ms(bytes);
                for rack in 0..tors.len() {
                    let leaves = model.and(&[is(worker, rack), not(master, rack)]);
                    let enters = model.and(&[not(worker, rack), is(master, rack)]);
                    up[rack] += ms(bytes) * leaves;
                    down[rack] += ms(bytes) * enters;
                }
            }
            let shortened = model.and(&[Expression::from(together), not(master, 0)]);
            up[0] -= saved * shortened;
            for (rack, down) in down.iter_mut().enumerate().skip(1) {
                let enters = model.and(&[Expression::from(together), is(master, rack)]);
                *down -= saved * enters;
            }
        }
        for load in out.into_iter().chain(inward) {
            model.constraints.push((load - time).leq(0.0));
        }
        for (rack, tor) in tors.iter().enumerate() {
            let uplinks = f64::from(tor.uplinks);
            model.constraints.push((up[rack].clone() - uplinks * time).leq(0.0));
            model.constraints.push((down[rack].clone() - uplinks * time).leq(0.0));
        }
        previous = Some(place);
    }
    let mut problem = model.variables.minimise(objective.clone()).using(microlp);
    for constraint in model.constraints {
        problem = problem.with(constraint);
    }
    problem.solve().unwrap().eval(objective)
}

#[test]
fn a_linear_program_finds_the_same_optimum() {
    let rate = Rate::from_gbps(10);
    for seed in 0..10 {
        let mut rng = Rng::stream(seed, 0, 0, "milp");
        let tor = |ports, slots| Tor { ports, uplinks: 1, uplink_rate: rate, slots };
        let (servers, tors) = match seed % 2 {
            0 => (4, vec![tor(2, 1000), tor(2, 0)]),
            _ => (5, vec![tor(2, 1000), tor(2, 0), tor(1, 0)]),
        };
        let mut periods = Vec::new();
        for _ in 0..2 {
            let mut order: Vec<u32> = (0..servers).collect();
            rng.shuffle(&mut order);
            let mut size = || 1_000_000 * (1 + rng.below(60));
            let workers = vec![(order[1], size()), (order[2], size())];
            let upload = Upload::estimated(JobId(1), order[0], workers, 0.5).unwrap();
            let flow = |src, dst, bytes| Flow { src, dst, bytes };
            let flows = vec![flow(order[3], order[0], size()), flow(order[2], order[3], size())];
            periods.push(Period::new(servers, flows, vec![upload], vec![]).unwrap());
        }
        let fabric = Fabric::new(Pod::new(servers, rate, tors).unwrap(), Architecture::P4Ordc);
        let delay = rng.below(20);
        let how = Reconfiguration { delay: Span::from_ms(delay), scope: Scope::All };
        let options = Options::new(Algorithm::Exact, how);
        let exact = plan(&fabric, &periods, &options, &mut rng).unwrap().total;
        let expected = optimum(&fabric, &periods, delay as f64);
        let found = exact.as_us_f64() / 1e3;
        assert!(
            (found - expected).abs() < 1e-3,
            "seed {seed}: {found} ms, and by the program {expected}"
        );
    }
}
