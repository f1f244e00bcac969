//! The user-space switch compared with the simulator.

mod switch_and_simulator;
