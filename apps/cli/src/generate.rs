//! `rackweave completions` and `rackweave man`: files for shells and manuals, made from the definition of the command line.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use clap_mangen::Man;
use rackweave_lab::builtin;

use crate::args::Args;
use crate::shell::{exit, print};

/// Print the completions of a shell on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave completions bash > ~/.local/share/bash-completion/completions/rackweave\n  \
    rackweave completions zsh > \"${fpath[1]}/_rackweave\"\n  \
    rackweave completions fish > ~/.config/fish/completions/rackweave.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: Shell,
}

/// Write manual pages to a directory: one for the command, and one for each subcommand.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  rackweave man ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The directory, created if need be.
    #[arg(value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// The variable by which a shell's script asks for completions.
const COMPLETE: &str = "RACKWEAVE_COMPLETE";

pub(crate) fn completions(args: &CompletionsArgs) -> miette::Result<u8> {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string());
    let shell = shell.ok_or_else(|| miette::miette!("no completions for {}", args.shell))?;
    let mut script = Vec::new();
    shell
        .write_registration(COMPLETE, "rackweave", "rackweave", "rackweave", &mut script)
        .map_err(|error| miette::miette!("cannot make the script: {error}"))?;
    print(&String::from_utf8_lossy(&script))
}

/// Answers a shell that asks for completions, and ends the process then.
pub(crate) fn complete() {
    CompleteEnv::with_factory(Args::command).var(COMPLETE).complete();
}

/// Completes the names of built-in scenarios, and paths of TOML files.
pub(crate) fn scenarios() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let typed = current.to_string_lossy();
        let names = builtin::SCENARIOS.iter().map(|scenario| scenario.name);
        let names = names.filter(|name| name.starts_with(typed.as_ref()));
        let is_toml = |path: &Path| path.extension().is_some_and(|it| it == "toml");
        let files = PathCompleter::any().filter(is_toml).complete(current);
        names.map(CompletionCandidate::new).chain(files).collect()
    })
}

pub(crate) fn man(args: &ManArgs) -> miette::Result<u8> {
    let failed = |path: &Path, error| miette::miette!("cannot write {}: {error}", path.display());
    std::fs::create_dir_all(&args.out).map_err(|error| failed(&args.out, error))?;
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, &args.out).map_err(|(path, error)| failed(&path, error))?;
    Ok(exit::DONE)
}

/// Writes the page of a command and those of its subcommands, without the hidden ones.
fn write_pages(command: &clap::Command, dir: &Path) -> Result<(), (PathBuf, std::io::Error)> {
    // clap gives a subcommand the name of its parents too, joined by hyphens, once it is built.
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = dir.join(format!("{name}.1"));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        Man::new(command.clone()).render(&mut file)?;
        file.flush()?;
        make_readable(&file)?;
        file.persist(&path)?;
        Ok(())
    };
    write().map_err(|error| (path.clone(), error))?;
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|it| write_pages(it, dir))
}

/// Makes a temporary file readable by everybody, as a manual has to be; `tempfile` gives it to its owner only.
fn make_readable(file: &tempfile::NamedTempFile) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}
