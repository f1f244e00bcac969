//! State of a million sessions on 27,648 hosts: `cargo run --release -p rackweave-orca --example orca_scale`.

use rackweave_orca::scale::{Members, ScaleConfig, report};

fn main() -> Result<(), rackweave_orca::label::LabelError> {
    for placement in [Members::Uniform, Members::PerRack(8)] {
        let report = report(&ScaleConfig { placement, ..ScaleConfig::default() })?;
        println!("{placement:?}: {report:#?}");
        println!(
            "{:.1} bytes a session in the controller, {:.1} in an agent",
            report.controller_bytes_per_session(),
            report.agent_bytes_per_session()
        );
    }
    Ok(())
}
