//! The examples run.

#[path = "../examples/stop_and_wait.rs"]
mod stop_and_wait;

#[test]
fn stop_and_wait_runs() {
    stop_and_wait::main();
}
