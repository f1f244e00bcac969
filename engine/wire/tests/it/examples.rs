//! The examples run.

#[path = "../../examples/layouts.rs"]
mod layouts;

#[test]
fn layouts_runs() {
    layouts::main();
}
