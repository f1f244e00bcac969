//! `rackweave compare`.

use std::path::PathBuf;

use crate::shell::{escaped_lines, exit, print, text_width};
use rackweave_lab::difference::{Difference, Results};

/// Say what differs between two results, and by how much, beyond what their seeds explain.
///
/// Points with the same transport and swept values are compared: where both results have several seeds, by the 95 % confidence interval
/// of the difference. Settings that differ are listed too.
///
/// 13 measures of each point are compared and 7 of each background stream, more with --all and of casts, images and jobs. At 95 % each, one of 20 that are the same in truth
/// would differ by chance: about 0.65 for each point without such streams. Holm's correction for the number of measures is made, with which the probability
/// that any measure is called different by chance is 5 % at most. What differs by its own interval only is listed as "by itself"; with two or three
/// seeds, little else can be.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave run quickstart --set 'sweep.seed=[1, 2, 3]' --out out/before\n  \
    rackweave run quickstart --set 'sweep.seed=[1, 2, 3]' --set fabric.switch.buffer=\"1 MB\" --out out/after\n  \
    rackweave compare out/before out/after\n\n\
    Exit codes: 0 compared, 1 with --exit-code and a difference, 2 wrong usage or file.")]
pub(crate) struct CompareArgs {
    /// Directory of the first result, or its summary.json.
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// Directory of the second result, or its summary.json.
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// Compare and list every measure, by message size too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the comparison as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// End with 1 unless results and points are complete and each measure is the same within the
    /// noise of its seeds.
    #[arg(long)]
    pub(crate) exit_code: bool,
}

pub(crate) fn compare(args: &CompareArgs) -> miette::Result<u8> {
    let (a, b) = (Results::read(&args.a)?, Results::read(&args.b)?);
    let difference = Difference::between(&a, &b, args.all);
    let text = if args.json {
        format!("{:#}\n", serde_json::json!(difference))
    } else {
        escaped_lines(&difference.to_text_within(args.all, text_width()))
    };
    print(&text)?;
    Ok(if args.exit_code && !difference.is_none() { exit::FAILED } else { exit::DONE })
}
