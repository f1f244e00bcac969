//! The examples run.

#[path = "../../examples/who_makes_the_load.rs"]
mod who_makes_the_load;

#[test]
fn who_makes_the_load_runs() {
    who_makes_the_load::main();
}
