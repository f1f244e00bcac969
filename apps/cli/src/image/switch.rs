//! `rackweave image switch`.

use std::path::PathBuf;

use miette::miette;
use rackweave_linux::switch::SwitchConfig;
use rackweave_testbed::systems::{ProgramName, ProgramOptions};

use super::hosts;
use super::switch_bpf::{self, BpfArgs};
use crate::switch::args::{LinkArgs, PollArgs, ShowArgs, host};
use crate::switch::{interfaces, one_switch, polled, run, with_program};

/// Run a switch that sends requests for chunks to hosts that have them.
///
/// It forwards all IPv4 packets between its hosts, and redirects the requests of SWP2P's clients on their way to the server. The
/// same as `rackweave switch --program swp2p`, which also has UDP ports, fabrics of several switches, and faults. With --bpf the
/// program runs in the kernel: everything except the requests of clients to the server passes as before.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave image switch --interface veth0 veth1 veth2 --server 0 --link \"10 Gbps\" --stats\n  \
    rackweave image switch --bpf --ports p0,p1,p2,p3 --server 192.0.2.1 --stats\n\n\
    Exit codes: 0 ended by Ctrl-C, 1 a socket failed or the kernel rejects the program, 2 wrong usage or file.")]
pub(crate) struct SwitchArgs {
    /// Interfaces of the hosts, in order. Needs CAP_NET_RAW.
    #[arg(long, value_name = "IF", required_unless_present = "bpf", num_args = 1..)]
    interface: Vec<String>,
    /// The server (`image serve --switch`): its address, with --interface also its number.
    #[arg(long, value_name = "N|ADDR[:PORT]")]
    server: String,
    /// File with the key that server and clients share, if they use one.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    poll: PollArgs,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    kernel: BpfArgs,
}

#[cfg(test)]
impl SwitchArgs {
    /// The configuration of the program in the kernel.
    pub(super) fn kernel_config(&self) -> Result<rackweave_bpf::swp2p::TorConfig, String> {
        Ok(self.kernel.config(hosts::address(&self.server)?))
    }
}

pub(super) fn switch(args: &SwitchArgs) -> miette::Result<u8> {
    let wrong = |why: String| miette!("--server: {why}");
    if args.kernel.bpf {
        let server = hosts::address(&args.server).map_err(wrong)?;
        return switch_bpf::run(&args.kernel, server, &args.show);
    }
    let server = host(&args.server).map_err(wrong)?;
    let fabric = one_switch(args.interface.len() as u32, &args.link);
    let config = polled(SwitchConfig::new(fabric, interfaces(&args.interface)), args.poll);
    let options = ProgramOptions { server: Some(server), ..ProgramOptions::default() };
    let config = with_program(config, ProgramName::Swp2p, options, args.key_file.as_deref())?;
    run(config, &args.show, None)
}
