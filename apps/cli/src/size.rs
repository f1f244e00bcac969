//! `rackweave size`.

use rackweave_lab::report::number;
use rackweave_lab::report::wrap::hanging;
use rackweave_lab::search::{Search, SearchError};
use rackweave_lab::size::{self, Need, Row, Smallest};

use crate::args::{SizeArgs, WhatArg};
use crate::progress::Progress;
use crate::run::warn;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print, text_width};
use crate::tune::each_once;

pub(crate) fn size(args: &SizeArgs) -> miette::Result<u8> {
    let need = match args.what {
        WhatArg::Buffer => Need::Buffer,
        WhatArg::Links => Need::Links,
    };
    let search = args.search.begin()?;
    let mut transports = args.transport.clone();
    if transports.is_empty() {
        transports = search.read(&[])?.points.into_iter().map(|point| point.transport).collect();
    }
    let transports = each_once(&transports);
    // What the last one lacks is known before the first is searched.
    for transport in &transports {
        size::check(&search, transport, need)?;
    }
    stop_on_ctrl_c(&search, Search::cancel)?;
    if !args.search.quiet {
        warn(&estimated(&search, &transports)?);
    }
    let mut all = Vec::new();
    let mut code = exit::DONE;
    for transport in &transports {
        let progress = Progress::start(&search, Search::progress, !args.search.quiet && !args.json);
        let found = size::size(&search, transport, need, f64::from(args.within) / 100.0);
        drop(progress);
        match found {
            Ok(found) => {
                if !args.json {
                    print(&described(&found, need, args.within, text_width()))?;
                }
                if !found.is_complete {
                    code = exit::INTERRUPTED;
                }
                all.push(found);
            }
            Err(SearchError::Interrupted) => code = exit::INTERRUPTED,
            Err(error) => return Err(error.into()),
        }
        if code == exit::INTERRUPTED {
            warn(&format!("Interrupted: the search for {transport} did not come to its end."));
            break;
        }
    }
    if args.json {
        let document = serde_json::json!({
            "interrupted": code == exit::INTERRUPTED,
            "within_percent": args.within,
            "transports": all,
        });
        print(&format!("{document:#}\n"))?;
    }
    Ok(code)
}

/// Says how much is to be run, about.
fn estimated(search: &Search, transports: &[String]) -> miette::Result<String> {
    let (mut runs, mut cpu_s) = (0, Some(0.0));
    for transport in transports {
        let (more, its_cpu_s) = size::estimate(search, transport)?;
        runs += more;
        cpu_s = cpu_s.zip(its_cpu_s).map(|(sum, more)| sum + more);
    }
    let cost =
        cpu_s.map_or_else(String::new, |cpu_s| format!(", {} on one core", number::seconds(cpu_s)));
    Ok(format!("about {runs} runs{cost}, more where a value is too small for the load"))
}

fn value(row: &Row, need: Need) -> String {
    match (row.value, need) {
        (None, _) => "unlimited".to_owned(),
        // All digits: what is rounded down loses packets.
        (Some(bytes), Need::Buffer) => format!("{bytes} B"),
        (Some(ratio), Need::Links) => format!("{ratio}"),
    }
}

/// A table of what was run, and the answer below it.
fn described(found: &Smallest, need: Need, within: u16, width: usize) -> String {
    let Smallest {
        transport,
        rows,
        without_loss,
        enough,
        unmeasured,
        seeds,
        notes,
        runs,
        is_complete,
    } = found;
    let (key, best) = match need {
        Need::Buffer => ("buffer", "without a limit"),
        Need::Links => ("oversubscription", "without oversubscription"),
    };
    let mut text = format!(
        "{transport}: {runs} runs, compared with the first\n  {key:>16}  {:>7}  {:>7}  {:>7}  {:>7}  {:>10}  highest p99\n",
        "p99", "p99.9", "goodput", "drops", "unfinished"
    );
    for (nth, row) in rows.iter().enumerate() {
        let line = format!(
            "  {:>16}  {:>7.3}  {:>7.3}  {:>7.3}  {:>7}  {:>10}  {}{}",
            value(row, need),
            row.p99,
            row.p999,
            row.goodput,
            number::grouped(row.drops),
            number::grouped(row.unfinished),
            if nth == 0 { "" } else { &row.decides },
            if row.is_good { "" } else { ": worse" }
        );
        text += &format!("{}\n", line.trim_end());
    }
    let mut say = |told: String| text += &(hanging("  ", &told, width) + "\n");
    if let Some(bytes) = without_loss {
        say(format!(
            "Nothing is lost from {} bytes of each port on: the longest queue.",
            number::grouped(*bytes)
        ));
    }
    if *unmeasured > 0 {
        say(format!("Not compared: {unmeasured} streams of points that measured no message."));
    }
    if !is_complete {
        say("Interrupted: values are missing, and a smaller one may do as well.".to_owned());
    }
    let place = rows.iter().position(|row| row.value == *enough).unwrap_or(0);
    let limit = match (place + 1 == rows.len(), need) {
        (true, _) if !is_complete => ", of those that were run",
        (true, Need::Links) => ", and perhaps more: nothing above was tried",
        (true, Need::Buffer) => ", the smallest that is tried",
        (false, _) => "",
    };
    let (enough, p999) = (value(&rows[place], need), rows[place].p999);
    say(format!(
        "p99 within {within} % of that {best}: {key} = {enough}{limit}; p99.9 is there {p999:.3} times as high"
    ));
    // A longer queue is not always the better one: it delays what comes behind it.
    let lowest =
        rows.iter().filter(|row| row.unfinished == 0).min_by(|a, b| a.p99.total_cmp(&b.p99));
    if let Some(row) = lowest.filter(|row| row.p99 < 1.0 - f64::from(within) / 100.0) {
        let (value, share) = (value(row, need), number::short(row.p99));
        say(format!("p99 is lowest with {key} = {value}: {share} times that {best}"));
    }
    if *seeds == 1 {
        say("One seed: another may need more. Sweep `seed`.".to_owned());
    }
    for note in notes {
        text += &(hanging("  * ", note, width) + "\n");
    }
    text + "\n"
}
