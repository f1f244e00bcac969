//! Runs the tests in Python against the library of this build.
//!
//! They need no packages: tests that use pandas, polars, Dask, Ray or Jupyter are skipped, by name, where these are not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use rackweave_lab::output::OutputDir;
use rackweave_lab::{Batch, Scenario, command_line};

/// Copies the package, and the library next to it under the name by which Python imports it.
fn install(into: &Path) {
    let package = into.join("rackweave");
    std::fs::create_dir(&package).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/rackweave");
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "py") {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let library = std::env::current_exe().unwrap().with_file_name("librackweave_python.so");
    std::os::unix::fs::symlink(library, package.join("_native.abi3.so")).unwrap();
}

/// Writes the results of a built-in scenario as the command does.
fn reference(folder: &Path) -> PathBuf {
    let sets = ["measure.messages=300".to_owned(), "sweep.seed=[1, 2]".to_owned()];
    let scenario = Scenario::load("quickstart", &sets, None).unwrap();
    let command = command_line::run("quickstart", &sets, None, scenario.one_seed());
    let results = Batch::new(scenario.clone()).run(None).unwrap();
    let out = folder.join("reference");
    let files = OutputDir::prepare(&out).unwrap().with_parquet(true).unwrap();
    files.write(&scenario, &results, &command).unwrap();
    out
}

/// Returns the interpreter, in a network namespace with loopback only if this machine can make one: Ray's workers listen at the
/// machine's own address otherwise, and the test with Ray is skipped then.
fn python() -> Command {
    let isolated = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", script, "sh"]);
        command
    };
    if isolated("ip link set lo up").output().is_ok_and(|output| output.status.success()) {
        isolated("ip link set lo up && exec python3 \"$@\"")
    } else {
        Command::new("python3")
    }
}

#[test]
fn the_package_passes_its_tests() {
    rackweave_testing::needs!(Python);
    let folder = tempfile::tempdir().unwrap();
    install(folder.path());
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut python = python();
    python.args(["-m", "unittest", "discover", "--verbose", "--start-directory"]).arg(tests);
    python.env("PYTHONPATH", folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("RACKWEAVE_REFERENCE", reference(folder.path()));
    let output = python.current_dir(folder.path()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{log}");
    assert!(output.status.success(), "{log}");
    assert!(log.contains("test_frames_of_the_command"), "the tests were not found: {log}");
}
