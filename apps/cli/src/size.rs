//! `rackweave size`.

use std::sync::Arc;

use rackweave_lab::report::number;
use rackweave_lab::scenario::ScenarioText;
use rackweave_lab::search::{Search, SearchError};
use rackweave_lab::size::{self, Need, Row, Smallest};

use crate::args::{SizeArgs, WhatArg};
use crate::progress::Progress;
use crate::run::warn;
use crate::shell::signal::stop_on_ctrl_c;
use crate::shell::{exit, print};

pub(crate) fn size(args: &SizeArgs) -> miette::Result<u8> {
    let need = match args.what {
        WhatArg::Buffer => Need::Buffer,
        WhatArg::Links => Need::Links,
    };
    let text = ScenarioText::load(&args.scenario)?;
    let search = Arc::new(Search::new(text, &args.sets, args.seed, args.jobs.map(usize::from)));
    let mut transports = args.transport.clone();
    if transports.is_empty() {
        transports = search.read(&[])?.points.into_iter().map(|point| point.transport).collect();
    }
    let mut seen = std::collections::BTreeSet::new();
    transports.retain(|name| seen.insert(name.clone()));
    // What the last one lacks is known before the first is searched.
    for transport in &transports {
        size::check(&search, transport, need)?;
    }
    stop_on_ctrl_c(&search, Search::cancel)?;
    let mut all = Vec::new();
    let mut code = exit::DONE;
    for transport in &transports {
        let progress = Progress::start(&search, Search::progress, !args.quiet && !args.json);
        let found = size::size(&search, transport, need, f64::from(args.within) / 100.0);
        drop(progress);
        match found {
            Ok(found) => {
                if !args.json {
                    print(&described(&found, need, args.within))?;
                }
                all.push(found);
            }
            Err(SearchError::Interrupted) => {
                code = exit::INTERRUPTED;
                warn(&format!("Interrupted: the search for {transport} did not come to its end."));
                break;
            }
            Err(error) => return Err(error.into()),
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

fn value(row: &Row, need: Need) -> String {
    match (row.value, need) {
        (None, _) => "unlimited".to_owned(),
        (Some(bytes), Need::Buffer) => number::bytes(bytes),
        (Some(ratio), Need::Links) => format!("{ratio}"),
    }
}

/// A table of what was run, and the answer below it.
fn described(found: &Smallest, need: Need, within: u16) -> String {
    let Smallest { transport, rows, without_loss, enough, unmeasured, runs } = found;
    let (key, best) = match need {
        Need::Buffer => ("buffer", "without a limit"),
        Need::Links => ("oversubscription", "without oversubscription"),
    };
    let mut text = format!(
        "{transport}: {runs} runs, compared with the first\n  {key:>16}  {:>6}  {:>7}  {:>7}  {:>10}\n",
        "p99", "goodput", "drops", "unfinished"
    );
    for row in rows {
        text += &format!(
            "  {:>16}  {:>6}  {:>7.3}  {:>7}  {:>10}{}\n",
            value(row, need),
            format!("{:.3}", row.p99),
            row.goodput,
            number::grouped(row.drops),
            number::grouped(row.unfinished),
            if row.is_good { "" } else { "  worse" }
        );
    }
    if let Some(bytes) = without_loss {
        text += &format!(
            "  Nothing is lost from {} bytes of each port on: the longest queue.\n",
            number::grouped(*bytes)
        );
    }
    if *unmeasured > 0 {
        text +=
            &format!("  Not compared: {unmeasured} streams of points that measured no message.\n");
    }
    let place = rows.iter().position(|row| row.value == *enough).unwrap_or(0);
    text += &format!(
        "  Tails within {within} % of those {best}: {key} = {}",
        value(&rows[place], need)
    );
    text += match (place + 1 == rows.len(), need) {
        (true, Need::Links) => ", and perhaps more: nothing above was tried\n",
        (true, Need::Buffer) => ", the smallest that is tried\n",
        (false, _) => "\n",
    };
    // A longer queue is not always the better one: it delays what comes behind it.
    let lowest =
        rows.iter().filter(|row| row.unfinished == 0).min_by(|a, b| a.p99.total_cmp(&b.p99));
    if let Some(row) = lowest.filter(|row| row.p99 < 1.0 - f64::from(within) / 100.0) {
        let (value, share) = (value(row, need), number::short(row.p99));
        text += &format!("  Tails are lowest with {key} = {value}: {share} times those {best}\n");
    }
    text + "\n"
}
