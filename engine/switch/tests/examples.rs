//! The examples run.

#[path = "../examples/burst.rs"]
mod burst;

#[test]
fn burst_runs() {
    burst::main();
}
