//! The examples run.

#[path = "../../examples/broken_link.rs"]
mod broken_link;
#[path = "../../examples/incast.rs"]
mod incast;
#[path = "../../examples/slowdowns.rs"]
mod slowdowns;

#[test]
fn broken_link_runs() {
    broken_link::main();
}

#[test]
fn incast_runs() {
    incast::main();
}

#[test]
fn slowdowns_runs() {
    slowdowns::main();
}
