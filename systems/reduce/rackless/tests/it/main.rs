//! Tests of planning as a whole.

mod instances;
mod milp;
mod plans;
mod reference;
