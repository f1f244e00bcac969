//! `rackweave paper`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_lab::output::OutputDir;
use rackweave_papers::{ClaimResults, Request, Session};

use crate::args::PaperArgs;
use crate::progress::Progress;
use crate::run::{host_set, quoted, warn};
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print, text_width};

/// The widest line that is printed; longer ones are hard to read on any terminal.
const WIDEST: usize = 120;

pub(crate) fn paper(args: &PaperArgs) -> miette::Result<u8> {
    if !args.page.is_empty() {
        return page(args);
    }
    let request = Request {
        paper: args.paper.clone(),
        claims: args.claims.clone(),
        quick: args.quick,
        sets: args.sets.clone(),
        host: args.host.as_deref().map(host_set).transpose()?,
        threads: args.threads.into(),
        #[cfg(feature = "hosts")]
        real_hosts: Some(Arc::new(crate::testbed::Workers(crate::testbed::worker_command()?))),
        #[cfg(not(feature = "hosts"))]
        real_hosts: None,
    };
    let session = Arc::new(Session::prepare(&request)?);
    if args.list {
        let items = session.items();
        return print(&if args.json {
            format!("{:#}\n", serde_json::json!({ "claims": items }))
        } else {
            rackweave_papers::to_text(&items)
        });
    }
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("out/papers"));
    let out = OutputDir::prepare(&out)?;
    stop_on_ctrl_c(&session, Session::cancel)?;
    let progress = Progress::start(&session, Session::progress, true);
    let results = session.run(args.jobs.map(usize::from), &out, &command_line(args));
    drop(progress);
    let results = results?;
    if args.json {
        print(&results.to_json())?;
    } else {
        print(&text(&results, out.path()))?;
    }
    if results.interrupted {
        warn("Interrupted: claims whose points are missing are not decided.");
        return Ok(exit::INTERRUPTED);
    }
    Ok(if results.all_decided() { exit::DONE } else { exit::FAILED })
}

/// Draws the page of results that are on the disk.
fn page(args: &PaperArgs) -> miette::Result<u8> {
    let out = OutputDir::prepare(&args.out.clone().unwrap_or_else(|| PathBuf::from("out/papers")))?;
    let results = rackweave_papers::merge(&args.page, out.path())?;
    results.write(&out, &command_line(args))?;
    print(&if args.json { results.to_json() } else { text(&results, out.path()) })?;
    Ok(if results.all_decided() { exit::DONE } else { exit::FAILED })
}

fn text(results: &ClaimResults, out: &Path) -> String {
    let width = text_width().min(WIDEST);
    let out = out.display();
    format!("{}claims:  {out}/claims.json\npage:    {out}/index.html\n", results.to_text(width))
}

/// The command that reproduces these results.
fn command_line(args: &PaperArgs) -> String {
    let mut parts = vec!["rackweave".to_owned(), "paper".to_owned()];
    parts.extend(args.paper.iter().map(|paper| quoted(paper)));
    for claim in &args.claims {
        parts.extend(["--claim".to_owned(), quoted(claim)]);
    }
    for set in &args.sets {
        parts.extend(["--set".to_owned(), quoted(set)]);
    }
    if !args.page.is_empty() {
        parts.push("--page".to_owned());
        parts.extend(args.page.iter().map(|folder| quoted(&folder.to_string_lossy())));
    }
    if let Some(host) = &args.host {
        parts.extend(["--host".to_owned(), quoted(&host.to_string_lossy())]);
    }
    if args.quick {
        parts.push("--quick".to_owned());
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::args::Args;

    #[test]
    fn the_help_names_every_paper() {
        let mut command = Args::command();
        let help = command.find_subcommand_mut("paper").unwrap().render_help().to_string();
        for paper in rackweave_papers::papers().unwrap() {
            let name = paper.name();
            assert!(
                help.contains(&format!("{name},")) || help.contains(&format!("{name})")),
                "{name}: {help}"
            );
        }
    }
}
