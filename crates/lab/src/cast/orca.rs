//! Orca's hosts in a run.

use rackweave_sim::Fabric;
use rackweave_sim::result::RunResult;

use super::run::{CastError, Scene};
use super::{CastResult, OrcaScheme};

pub(super) fn run(
    _scene: &Scene<'_>,
    _scheme: &OrcaScheme,
    _fabric: Fabric,
) -> Result<(RunResult, CastResult), CastError> {
    Err(CastError::Session("not yet".into()))
}
