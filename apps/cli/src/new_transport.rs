//! `rackweave new-transport`: a crate with a transport of one's own. Its files are those of the examples `fixed-window` or `scalable`,
//! which are compiled and tested with this crate, under another name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use rackweave_scenario::transport::refused_name;

use crate::run::warn;
use crate::shell::signal::Interrupt;
use crate::shell::{exit, print};

/// Write a crate with a transport of one's own, and a command that runs it next to the built-in ones.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    rackweave new-transport my-window --path ~/rackweave\n  \
    cd my-window; cargo run -- run compare.toml\n\n\
    Exit codes: 0 written, 2 wrong name or path, or the directory exists, 130 interrupted; nothing is\n    written then.")]
pub(crate) struct NewTransportArgs {
    /// Name of the transport, and of its directory: lower-case letters, digits and hyphens.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Checkout of Rackweave that the crate depends on. Default: the published crates of this version.
    #[arg(long, value_name = "CHECKOUT")]
    pub(crate) path: Option<PathBuf>,
    /// A congestion control for TCP, instead of a whole transport.
    #[arg(long)]
    pub(crate) congestion: bool,
}

/// A transport that the command writes under another name.
struct Template {
    /// Its name in hyphens, and as a type.
    names: (&'static str, &'static str),
    /// Its files, by the paths in the crate that is written.
    files: &'static [(&'static str, &'static str)],
}

/// The manifest and the scenario, which are the same for all but for the name.
const MANIFEST: (&str, &str) = ("Cargo.toml", include_str!("../examples/fixed-window/crate.toml"));
const COMPARE: (&str, &str) =
    ("compare.toml", include_str!("../examples/fixed-window/compare.toml"));

const TRANSPORT: Template = Template {
    names: ("fixed-window", "FixedWindow"),
    files: &[
        ("src/transport.rs", include_str!("../examples/fixed-window/transport.rs")),
        ("src/tests.rs", include_str!("../examples/fixed-window/tests.rs")),
        ("src/main.rs", include_str!("../examples/fixed-window/main.rs")),
        COMPARE,
        MANIFEST,
    ],
};

const CONGESTION: Template = Template {
    names: ("scalable", "Scalable"),
    files: &[
        ("src/congestion.rs", include_str!("../examples/scalable/congestion.rs")),
        ("src/main.rs", include_str!("../examples/scalable/main.rs")),
        COMPARE,
        MANIFEST,
    ],
};

/// Crates that the written one depends on, names that Cargo keeps for itself, and a type that the macro of keys needs.
const RESERVED: [&str; 10] = [
    "rackweave",
    "serde",
    "core",
    "std",
    "test",
    "build",
    "deps",
    "examples",
    "incremental",
    "option",
];

pub(crate) fn new_transport(args: &NewTransportArgs) -> miette::Result<u8> {
    let source = match &args.path {
        Some(path) => by_path(path)?,
        None => format!("version = \"{}\"", env!("CARGO_PKG_VERSION")),
    };
    let lock = args.path.as_ref().and_then(|path| fs::read(path.join("Cargo.lock")).ok());
    // A signal while files are written removes the written ones.
    let interrupt = Interrupt::watch()?;
    let template = if args.congestion { &CONGESTION } else { &TRANSPORT };
    let files = template.files(&args.name, &source)?;
    if !write(Path::new(&args.name), &files, lock.as_deref(), &|| interrupt.is_set())? {
        warn("Interrupted: nothing is written.");
        return Ok(exit::INTERRUPTED);
    }
    let name = &args.name;
    if args.path.is_none() {
        let version = env!("CARGO_PKG_VERSION");
        warn(&format!("note: if rackweave {version} is not published yet, use --path CHECKOUT"));
    }
    print(&format!(
        "{name}/{main}: what it does, and its keys\n\
         {name}/src/main.rs: the command\n\
         {name}/compare.toml: {name} next to homa and dctcp\n\n\
         cd {name}\ncargo run -- run compare.toml\ncargo test\n",
        main = files[0].0
    ))
}

/// The dependency on a checkout.
fn by_path(checkout: &Path) -> miette::Result<String> {
    let name = checkout.display();
    let cli = checkout.join("apps/cli");
    if !cli.join("Cargo.toml").is_file() {
        return Err(miette!("`{name}` is no checkout of Rackweave: it has no apps/cli/Cargo.toml"));
    }
    let cli = cli.canonicalize().into_diagnostic()?;
    let text = cli.to_str().ok_or_else(|| miette!("the path of `{name}` is not UTF-8"))?;
    // A TOML string: JSON's escapes are valid in it.
    Ok(format!("path = {}", serde_json::Value::from(text)))
}

impl Template {
    /// The files under this name, in a crate that depends on Rackweave by `source`.
    fn files(&self, name: &str, source: &str) -> miette::Result<Vec<(&'static str, String)>> {
        if let Some(why) = refused_name(name) {
            return Err(miette!("the name `{name}` {why}"));
        }
        let type_name = camel(name);
        let is_used = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == type_name)
        };
        let is_taken = name != self.names.0 && self.files.iter().any(|(_, text)| is_used(text));
        if is_taken || RESERVED.contains(&name) {
            return Err(miette!("the name `{name}` has another meaning in the crate"));
        }
        // The manifest and the scenario have the name of the first template.
        let renamed = self.files.iter().map(|(path, text)| {
            let text = text
                .replace(TRANSPORT.names.0, name)
                .replace(self.names.0, name)
                .replace(self.names.1, &type_name)
                .replace("SOURCE", source);
            (*path, text)
        });
        Ok(renamed.collect())
    }
}

/// A name in hyphens as the name of a type.
fn camel(name: &str) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        chars
            .next()
            .map(|first| first.to_ascii_uppercase())
            .into_iter()
            .chain(chars)
            .collect::<String>()
    };
    name.split('-').map(capital).collect()
}

/// Writes the directory next to its place, and moves it there when it is whole. Returns whether it is there: not if it is to stop before.
fn write(
    to: &Path,
    files: &[(&str, String)],
    lock: Option<&[u8]>,
    stops: &dyn Fn() -> bool,
) -> miette::Result<bool> {
    let name = to.display();
    if to.symlink_metadata().is_ok() {
        return Err(miette!("`{name}` exists: nothing is written"));
    }
    let aside = || -> io::Result<bool> {
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = tempfile::tempdir_in(parent.unwrap_or(Path::new(".")))?;
        let whole = folder.path().join("crate");
        fs::create_dir_all(whole.join("src"))?;
        for (path, text) in files {
            fs::write(whole.join(path), text)?;
        }
        fs::write(whole.join(".gitignore"), "/target\n/out\n")?;
        if let Some(lock) = lock {
            fs::write(whole.join("Cargo.lock"), lock)?;
        }
        if stops() {
            return Ok(false);
        }
        fs::rename(&whole, to).map(|()| true)
    };
    aside().into_diagnostic().wrap_err_with(|| format!("cannot write `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATES: [Template; 2] = [TRANSPORT, CONGESTION];

    fn refusal(name: &str) -> String {
        TRANSPORT.files(name, "").unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_the_template_under_another_name() {
        let same = TRANSPORT.files(TRANSPORT.names.0, "SOURCE").unwrap();
        let whole = TRANSPORT.files.iter().map(|(path, text)| (*path, (*text).to_owned()));
        assert_eq!(same, whole.collect::<Vec<_>>());
        for template in TEMPLATES {
            let files = template.files("my-window-2", "version = \"1\"").unwrap();
            for ((path, text), (from, template_text)) in files.iter().zip(template.files) {
                assert_eq!((*path, text.lines().count()), (*from, template_text.lines().count()));
                let left = ["fixed-window", "FixedWindow", "SOURCE", "Scalable", "`scalable`"];
                assert!(left.iter().all(|name| !text.contains(name)), "{path}");
            }
            let rust = &files[0].1;
            assert!(rust.contains("pub struct MyWindow2 {"));
            assert!(rust.contains("name: \"my-window-2\""));
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for wrong in ["My-window", "my_window", "2nd", "-a", "a--b", "a-", "", "../a"] {
            assert!(refusal(wrong).contains("is not lower-case letters"), "{wrong}");
        }
        for taken in ["dctcp", "homa", "datagram", "priority"] {
            assert!(refusal(taken).contains("built-in transport"), "{taken}");
        }
        assert!(refusal("label").contains("key of every transport"));
        for used in ["serde", "config", "option", "sender", "test"] {
            assert!(refusal(used).contains("another meaning"), "{used}");
        }
    }

    #[test]
    fn the_directory_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("my-window");
        let files = TRANSPORT.files("my-window", "version = \"1\"").unwrap();
        write(&to, &files, None, &|| false).unwrap();
        for (path, text) in &files {
            assert_eq!(&fs::read_to_string(to.join(path)).unwrap(), text);
        }
        fs::write(to.join("src/transport.rs"), "mine").unwrap();
        assert!(write(&to, &files, None, &|| false).unwrap_err().to_string().contains("exists"));
        assert_eq!(fs::read_to_string(to.join("src/transport.rs")).unwrap(), "mine");
        // A file that cannot be written leaves nothing behind.
        let broken = [files, vec![("no/such/folder", String::new())]].concat();
        let other = folder.path().join("other");
        assert!(write(&other, &broken, None, &|| false).is_err() && !other.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // Nor does a signal.
        let files = TRANSPORT.files("other", "version = \"1\"").unwrap();
        assert!(!write(&other, &files, None, &|| true).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
