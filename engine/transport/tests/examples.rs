//! The examples run.

#[path = "../examples/round_trips.rs"]
mod round_trips;

#[test]
fn round_trips_runs() {
    round_trips::main();
}
