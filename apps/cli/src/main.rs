//! The `rackweave` command, with the built-in transports only.

fn main() -> std::process::ExitCode {
    rackweave::main(&[])
}
