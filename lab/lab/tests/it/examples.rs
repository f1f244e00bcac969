//! The examples run.

#[path = "../../examples/sweep.rs"]
mod sweep;

#[test]
fn sweep_runs() {
    sweep::main();
}
