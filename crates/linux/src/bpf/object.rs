//! From C to what the kernel loads.

use std::io::Write;
use std::process::{Command, Stdio};

use super::BpfError;

const DECIDES: &str = include_str!("orca_tor.h");
const MOVES: &str = include_str!("tor.c");

/// The program as an object file: `clang` reads the source from its standard input and writes to its standard output.
pub(super) fn compile() -> Result<Vec<u8>, BpfError> {
    let mut child = Command::new("clang")
        .args(["-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .args(["-x", "c", "-c", "-o", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => BpfError::NoCompiler,
            _ => BpfError::Compiler(error.to_string()),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read, it says why.
        let _ =
            stdin.write_all(DECIDES.as_bytes()).and_then(|()| stdin.write_all(MOVES.as_bytes()));
    }
    let output = child.wait_with_output().map_err(|error| BpfError::Compiler(error.to_string()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(BpfError::Compiler(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
