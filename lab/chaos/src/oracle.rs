//! What must hold in every run: nothing wrong is delivered, and whoever can be reached gets everything.

use rackweave_lab::results::PointResult;
use rackweave_lab::study::StudySummary;
use rackweave_sim::result::{MessageRecord, Outcome};

use super::Product;
use super::draw::Drawn;

/// Returns the first sentence that a run contradicts.
///
/// # Errors
/// The sentence, with the numbers of the run.
pub(super) fn check(product: Product, drawn: &Drawn, point: &PointResult) -> Result<(), String> {
    match product {
        Product::Messages => messages(drawn, point),
        Product::Cast => cast(drawn, point),
        Product::Image => image(drawn, point),
        Product::Reduce => reduce(point),
        Product::Allreduce => allreduce(point),
        Product::Fetch | Product::Rpc | Product::Store => {
            Err("it has an oracle of its own".to_owned())
        }
    }
}

/// Every message ends. Those between hosts that neither crash nor are cut off arrive.
fn messages(drawn: &Drawn, point: &PointResult) -> Result<(), String> {
    for record in point.messages.iter().flatten() {
        let MessageRecord { src, dst, bytes, start, outcome, .. } = record;
        let what = format!(
            "the message of {bytes} bytes from host {} to host {} that started at {:.1} us",
            src.0,
            dst.0,
            start.as_us_f64()
        );
        let faulty = |host: u32| drawn.crashed.contains(&host) || drawn.cut_off.contains(&host);
        match outcome {
            Outcome::Completed(_) => {}
            Outcome::Unfinished => return Err(format!("{what} has neither arrived nor failed")),
            Outcome::Failed(reason) if !faulty(src.0) && !faulty(dst.0) && !drawn.partitioned => {
                return Err(format!(
                    "{what} failed ({reason}), though both hosts could be reached"
                ));
            }
            Outcome::Failed(_) => {}
        }
    }
    let counts = &point.summary.messages;
    if point.summary.verified_messages < counts.completed {
        return Err(format!(
            "{} messages arrived, and the bytes of {} were as sent",
            counts.completed, point.summary.verified_messages
        ));
    }
    Ok(())
}

/// No receiver has a wrong byte, and each that did not crash has every file.
fn cast(drawn: &Drawn, point: &PointResult) -> Result<(), String> {
    let StudySummary::Cast(cast) = &point.summary.study else {
        return Err("it reports no cast".to_owned());
    };
    if cast.wrong_bytes > 0 {
        return Err(format!("receivers have {} wrong bytes", cast.wrong_bytes));
    }
    for receiver in &cast.receivers {
        let crashed = drawn.crashed.contains(&receiver.host);
        if !crashed && (receiver.lost || receiver.files < cast.files) {
            return Err(format!(
                "host {} has {} of {} files{}, and did not crash",
                receiver.host,
                receiver.files,
                cast.files,
                if receiver.lost { ", was given up" } else { "" }
            ));
        }
    }
    Ok(())
}

/// No client has written a wrong byte, and each that did not crash has the image.
fn image(drawn: &Drawn, point: &PointResult) -> Result<(), String> {
    let StudySummary::Image(image) = &point.summary.study else {
        return Err("it reports no image".to_owned());
    };
    if image.wrong > 0 {
        return Err(format!("{} clients have a wrong image", image.wrong));
    }
    for record in point.messages.iter().flatten() {
        let crashed = drawn.crashed.contains(&record.dst.0);
        if !crashed && !matches!(record.outcome, Outcome::Completed(_)) {
            return Err(format!("host {} has no image, and did not crash", record.dst.0));
        }
    }
    Ok(())
}

/// Every job ends with exactly the sums of its text.
fn reduce(point: &PointResult) -> Result<(), String> {
    let StudySummary::Reduce(reduce) = &point.summary.study else {
        return Err("it reports no job".to_owned());
    };
    let (finished, unfinished) = (reduce.finished, reduce.unfinished);
    if reduce.exact < finished {
        let wrong = finished - reduce.exact;
        return Err(format!("{wrong} of {finished} results are not those of the text"));
    }
    if unfinished > 0 {
        return Err(format!("{unfinished} of {} jobs have not ended", finished + unfinished));
    }
    Ok(())
}

/// Every step ends with the right sums at all workers.
fn allreduce(point: &PointResult) -> Result<(), String> {
    let StudySummary::Allreduce(all) = &point.summary.study else {
        return Err("it reports no step".to_owned());
    };
    let (finished, unfinished) = (all.finished, all.unfinished);
    if all.exact < finished {
        let wrong = finished - all.exact;
        return Err(format!("{wrong} of {finished} steps have wrong sums at a worker"));
    }
    if unfinished > 0 {
        return Err(format!("{unfinished} of {} steps have not ended", finished + unfinished));
    }
    Ok(())
}
