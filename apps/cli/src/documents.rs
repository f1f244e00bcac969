//! The tables of options and exit codes in documents, made from the definition of the command line.
//!
//! `<!-- generated: help cast send -->` is the table of the options of `rackweave cast send`, or of the subcommands of a
//! command that has some; `<!-- generated: exit-codes cast send -->` is that of the exit codes that its help names.
//! `<!-- generated: help cast receive as cast send -->` names the options that are those of `cast send` in its last row.
//! `RACKWEAVE_BLESS=1 cargo test -p rackweave documents` writes them.

use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};
use rackweave_docs::SourceFile;
use rackweave_docs::generated::{self, Marker};

use crate::args::Args;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn documents() -> Vec<SourceFile> {
    let files = rackweave_docs::read(root()).unwrap();
    files.into_iter().filter(SourceFile::is_document).collect()
}

fn command() -> Command {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    command
}

fn find<'a>(command: &'a Command, path: &str) -> Result<&'a Command, String> {
    path.split_whitespace().try_fold(command, |command, name| {
        let found = command.get_subcommands().find(|sub| sub.get_name() == name);
        found.ok_or_else(|| format!("there is no command `rackweave {path}`"))
    })
}

/// A help text in one line that Markdown shows as it is.
fn line(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('<', "&lt;")
}

fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
}

/// The option as one writes it, such as `-o, --out <DIR>`.
fn usage(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>"));
    let values = values.collect::<Vec<_>>().join(" ");
    let names = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let usage = if takes_value { format!("{names} {values}") } else { names };
    format!("`{}`", usage.trim())
}

fn option(arg: &Arg) -> [String; 3] {
    let mut meaning = line(arg.get_help());
    let mut default = String::new();
    // Defaults that clap does not know stand in the text.
    if let Some((before, rest)) = meaning.clone().split_once(" (default: ")
        && let Some((said, after)) = rest.split_once(')')
    {
        default = said.to_owned();
        meaning = format!("{before}{after}");
    }
    let values = arg.get_possible_values();
    let names = values.iter().filter(|value| !value.is_hide_set());
    let names: Vec<String> = names.map(|value| format!("`{}`", value.get_name())).collect();
    if !names.is_empty() && arg.get_action().takes_values() {
        meaning = format!("{}: {}", meaning.trim_end_matches('.'), names.join(", "));
    }
    if default.is_empty() && arg.get_action().takes_values() {
        let known = arg.get_default_values().iter();
        default = known.map(|value| format!("`{}`", value.to_string_lossy())).collect();
    }
    if default.is_empty() && arg.is_required_set() {
        default = "required".to_owned();
    }
    [usage(arg), meaning.trim_end_matches('.').to_owned(), default]
}

/// The path of a marker's command, and that of the command whose options its table only names.
fn paths(marker: &Marker) -> (&str, Option<&str>) {
    match marker.arguments.split_once(" as ") {
        Some((path, other)) => (path, Some(other)),
        None => (&marker.arguments, None),
    }
}

/// One row for options that another command has too.
fn shared(options: &[[String; 3]], other: &Command) -> [String; 3] {
    let names = options.iter().map(|[usage, ..]| {
        let name = usage.split(" <").next().unwrap_or(usage);
        format!("{}`", name.trim_end_matches('`'))
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let other = other.get_bin_name().unwrap_or_else(|| other.get_name());
    [names, format!("as of `{other}`"), String::new()]
}

/// The subcommands and options of a command. Options that `other` has with the same text share a row.
fn help(command: &Command, other: Option<&Command>) -> String {
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let subcommands: Vec<[String; 2]> = subcommands
        .map(|sub| {
            let name = sub.get_bin_name().unwrap_or_else(|| sub.get_name());
            [format!("`{name}`"), line(sub.get_about()).trim_end_matches('.').to_owned()]
        })
        .collect();
    let known: Vec<[String; 3]> = other.into_iter().flat_map(visible).map(option).collect();
    let (same, mut options): (Vec<_>, Vec<_>) =
        visible(command).map(option).partition(|row| known.contains(row));
    options.extend(other.filter(|_| !same.is_empty()).map(|other| shared(&same, other)));
    let options = generated::table(["option", "meaning", "default"], &options);
    generated::table(["command", "what it does"], &subcommands) + &options
}

/// The exit codes that a help names, as in "Exit codes: 0 done, 1 failed."
fn exit_codes(command: &Command) -> Result<String, String> {
    let text = line(command.get_after_help());
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let (_, list) = text
        .split_once("Exit codes: ")
        .ok_or_else(|| format!("the help of `{name}` names no exit codes"))?;
    let mut rows: Vec<[String; 2]> = Vec::new();
    for part in list.trim_end_matches('.').split([',', ';']).map(str::trim) {
        match (part.split_once(' '), rows.last_mut()) {
            (Some((code, meaning)), _) if code.parse::<u8>().is_ok() => {
                rows.push([code.to_owned(), meaning.to_owned()]);
            }
            (_, Some([_, meaning])) => *meaning = format!("{meaning}, {part}"),
            (_, None) => {
                return Err(format!("the help of `{name}` begins its exit codes with text"));
            }
        }
    }
    Ok(generated::table(["exit code", "meaning"], &rows))
}

fn generate(command: &Command, marker: &Marker) -> Option<Result<String, String>> {
    let (path, other) = paths(marker);
    let found = find(command, path);
    let other = other.map(|path| find(command, path)).transpose();
    match marker.kind.as_str() {
        "help" => Some(found.and_then(|found| Ok(help(found, other?)))),
        "exit-codes" => Some(found.and_then(exit_codes)),
        _ => None,
    }
}

#[test]
fn documents_have_the_options_of_the_command() {
    let command = command();
    let mut problems = Vec::new();
    for document in documents() {
        let (text, found) = generated::replace(&document.text, |marker| generate(&command, marker));
        if std::env::var_os("RACKWEAVE_BLESS").is_some() && text != document.text {
            std::fs::write(root().join(&document.path), text).unwrap();
        } else {
            let path = document.path;
            problems.extend(
                found.into_iter().map(|(line, message)| format!("{path}:{line}: {message}")),
            );
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Collects the commands with options that have no block.
fn without_block(command: &Command, path: &str, shown: &[Marker], missing: &mut Vec<String>) {
    let is_shown = shown.iter().any(|marker| paths(marker).0 == path);
    if visible(command).next().is_some() && !is_shown {
        missing.push(path.to_owned());
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        without_block(sub, path.trim(), shown, missing);
    }
}

#[test]
fn documents_have_a_block_of_each_command_with_options() {
    let documents = documents();
    let shown = documents.iter().flat_map(|document| generated::markers(&document.text));
    let shown: Vec<Marker> = shown.filter(|marker| marker.kind == "help").collect();
    let mut missing = Vec::new();
    without_block(&command(), "", &shown, &mut missing);
    assert!(missing.is_empty(), "no document has the options of: {}", missing.join(", "));
    without_block(&command(), "", &shown[1..], &mut missing);
    assert_eq!(missing, [paths(&shown[0]).0]);
}

#[test]
fn documents_get_rows_of_options_subcommands_and_exit_codes() {
    let command = Command::new("x")
        .after_help("Exit codes: 0 all, or none, 2 wrong.")
        .subcommand(Command::new("y").about("Does y."))
        .subcommand(Command::new("z").hide(true))
        .arg(clap::arg!(-o --out <DIR> "Where to (default: here).").required(false))
        .arg(clap::arg!(--mode <M> "How.").value_parser(["a", "b"]).default_value("a"))
        .arg(clap::arg!(<FILE> "What < | is read."))
        .arg(clap::arg!(--quiet "Says nothing.").hide(true));
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let expected = "| command | what it does |\n|---|---|\n| `x y` | Does y |\n\
                    | option | meaning | default |\n|---|---|---|\n\
                    | `-o, --out <DIR>` | Where to | here |\n\
                    | `--mode <M>` | How: `a`, `b` | `a` |\n\
                    | `<FILE>` | What &lt; \\| is read | required |\n";
    assert_eq!(help(&command, None), expected);
    let expected = "| option | meaning | default |\n|---|---|---|\n\
                    | `--all` | All | |\n| `-o, --out` | as of `x` | |\n";
    let other = Command::new("w").arg(clap::arg!(--all "All."));
    let mut other =
        other.arg(clap::arg!(-o --out <DIR> "Where to (default: here).").required(false));
    other.build();
    assert_eq!(help(&other, Some(&command)), expected);
    assert_eq!(help(&other, Some(&Command::new("v"))), help(&other, None));
    let expected = "| exit code | meaning |\n|---|---|\n| 0 | all, or none |\n| 2 | wrong |\n";
    assert_eq!(exit_codes(&command).unwrap(), expected);
    assert!(exit_codes(find(&command, "y").unwrap()).is_err());
    assert!(find(&command, "y z").is_err());
}
