//! The columns of a comparison, for the terminal's table and the page's alike.

use super::{
    model::{Point, Totals},
    number,
};

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// Neither: the column only describes.
    Neither,
}

/// One measure of all points.
pub(super) struct Column {
    /// What stands above the names of neighbouring columns; may be empty.
    pub(super) group: &'static str,
    /// Its name.
    pub(super) name: &'static str,
    /// Which value is emphasised.
    pub(super) better: Better,
    /// Whether the value says nothing where messages are missing.
    pub(super) of_messages: bool,
    /// The value.
    pub(super) value: fn(&Totals) -> f64,
    /// The value as it is written.
    pub(super) text: fn(f64) -> String,
    /// Columns with the highest rank are left out first where there is little room.
    pub(super) rank: u8,
    /// Whether the column is left out if all its values are zero or missing.
    pub(super) optional: bool,
}

/// A column that describes, to be overridden.
const PLAIN: Column = Column {
    group: "",
    name: "",
    better: Better::Neither,
    of_messages: false,
    value: |_| f64::NAN,
    text: number::short,
    rank: 0,
    optional: false,
};

/// All columns, left to right.
pub(super) const COLUMNS: [Column; 14] = [
    Column { group: "messages", name: "done", value: |t| float(t.completed), text: count, ..PLAIN },
    Column {
        group: "messages",
        name: "missing",
        value: |t| float(t.failed.saturating_add(t.unfinished)),
        text: count,
        optional: true,
        rank: 1,
        ..PLAIN
    },
    Column { name: "p50", value: |t| t.slowdown.p50, ..SLOWDOWN },
    Column { name: "p99", value: |t| t.slowdown.p99, ..SLOWDOWN },
    Column { name: "mean", value: |t| t.slowdown.mean, rank: 6, ..SLOWDOWN },
    Column { name: "p50", value: |t| t.latency_us.p50, rank: 4, ..LATENCY },
    Column { name: "p99", value: |t| t.latency_us.p99, rank: 3, ..LATENCY },
    Column { name: "mean", value: |t| t.latency_us.mean, rank: 7, ..LATENCY },
    Column {
        group: "goodput",
        name: "Gbit/s",
        better: Better::Higher,
        value: |t| t.goodput_gbps,
        ..PLAIN
    },
    Column { name: "drops", value: |t| float(t.drops), ..PACKETS },
    Column { name: "trims", value: |t| float(t.trims), optional: true, rank: 8, ..PACKETS },
    Column { name: "marks", value: |t| float(t.ecn_marks), optional: true, rank: 9, ..PACKETS },
    Column { name: "mean", value: |t| t.queue_mean_bytes, rank: 10, ..QUEUE },
    Column { name: "max", value: |t| t.queue_max_bytes, rank: 5, ..QUEUE },
];

const SLOWDOWN: Column =
    Column { group: "slowdown", better: Better::Lower, of_messages: true, ..PLAIN };
const LATENCY: Column = Column {
    group: "latency",
    better: Better::Lower,
    of_messages: true,
    text: number::micros,
    ..PLAIN
};
const QUEUE: Column =
    Column { group: "queue", better: Better::Lower, text: number::bytes, ..PLAIN };
const PACKETS: Column = Column { group: "packets", text: count, ..PLAIN };

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it was a count before `float`"
)]
fn count(value: f64) -> String {
    number::count(value as u64)
}

impl Column {
    /// Whether the column has something to say about `points`.
    pub(super) fn speaks(&self, points: &[Point]) -> bool {
        !self.optional || points.iter().any(|p| (self.value)(&p.totals) > 0.0)
    }

    /// Which points are the best in this column.
    pub(super) fn best(&self, points: &[Point]) -> Vec<bool> {
        match self.better {
            Better::Neither => vec![false; points.len()],
            better => best(points, better == Better::Lower, |p| {
                if self.of_messages && !p.totals.is_whole() {
                    f64::NAN
                } else {
                    (self.value)(&p.totals)
                }
            }),
        }
    }
}

/// Which points have the best `value`, among those that can be compared: where groups were run at
/// several values of a sweep, those at the same value. None unless two differ, and none that is not
/// finite.
pub(super) fn best(points: &[Point], lower: bool, value: impl Fn(&Point) -> f64) -> Vec<bool> {
    let several_groups = points.iter().any(|p| p.group != points[0].group);
    let class = |p: &Point| if several_groups { p.variant_label() } else { String::new() };
    let classes: Vec<String> = points.iter().map(class).collect();
    let values: Vec<f64> = points.iter().map(value).collect();
    (0..points.len())
        .map(|i| {
            let rivals =
                || values.iter().zip(&classes).filter(|(v, c)| **c == classes[i] && v.is_finite());
            let low = rivals().fold(f64::INFINITY, |low, (v, _)| low.min(*v));
            let high = rivals().fold(f64::NEG_INFINITY, |high, (v, _)| high.max(*v));
            let winner = if lower { low } else { high };
            // What is written with three digits does not win by the fourth.
            let close = |a: f64, b: f64| (a - b).abs() <= 0.0005 * b.abs();
            values[i].is_finite() && !close(low, high) && close(values[i], winner)
        })
        .collect()
}

/// What is wrong with a point, in words; `None` if nothing is.
pub(super) fn warning(point: &Point) -> Option<String> {
    let t = &point.totals;
    if t.is_whole() {
        return None;
    }
    let mut parts = Vec::new();
    for (count, what) in [(t.failed, "failed"), (t.unfinished, "unfinished")] {
        if count > 0 {
            parts.push(format!("{} {what}", number::grouped(count)));
        }
    }
    let missing = if parts.is_empty() {
        String::new()
    } else {
        format!("of {} messages {}; ", number::grouped(t.started), parts.join(" and "))
    };
    let left_out = match t.left_out {
        0 => "",
        _ => {
            "; unfinished messages are left out of all statistics, so that long messages look better than \
              they are"
        }
    };
    Some(format!("{}: {missing}the run ended with \"{}\"{left_out}", point.label, t.end))
}

/// Who won, in a sentence; `None` if there is nothing to compare.
pub(super) fn verdict(points: &[Point]) -> Option<String> {
    let p99 = |p: &Point| p.totals.slowdown.p99;
    let mut ranked: Vec<&Point> =
        points.iter().filter(|p| p99(p).is_finite() && p.totals.is_whole()).collect();
    if ranked.len() < 2 {
        return None;
    }
    let variants =
        points.iter().map(Point::variant_label).collect::<std::collections::BTreeSet<_>>();
    let several_groups = points.iter().any(|p| p.group != points[0].group);
    if several_groups && variants.len() > 1 {
        let wins = best(points, true, |p| if p.totals.is_whole() { p99(p) } else { f64::NAN });
        let mut count: Vec<(&str, usize)> = Vec::new();
        for (point, _) in points.iter().zip(wins).filter(|(_, won)| *won) {
            match count.iter_mut().find(|(group, _)| *group == point.group) {
                Some((_, n)) => *n += 1,
                None => count.push((&point.group, 1)),
            }
        }
        count.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let parts: Vec<String> = count
            .iter()
            .map(|(group, n)| format!("{group} at {n} of {}", variants.len()))
            .collect();
        return (!parts.is_empty())
            .then(|| format!("Lowest p99 slowdown, by value of the sweep: {}.", parts.join(", ")));
    }
    ranked.sort_by(|a, b| p99(a).total_cmp(&p99(b)));
    let (first, rest) = ranked.split_first()?;
    let mut others: Vec<String> = rest
        .iter()
        .take(4)
        .map(|p| {
            format!(
                "{} {} ({} times)",
                p.label,
                number::short(p99(p)),
                number::short(p99(p) / p99(first))
            )
        })
        .collect();
    if rest.len() > others.len() {
        others.push(format!("{} more", rest.len() - others.len()));
    }
    let missing = points.len() - ranked.len();
    let not_compared = match missing {
        0 => String::new(),
        1 => " One point with missing messages is not compared.".to_owned(),
        n => format!(" {n} points with missing messages are not compared."),
    };
    Some(format!(
        "Lowest p99 slowdown: {} with {}; {}.{not_compared}",
        first.label,
        number::short(p99(first)),
        others.join(", ")
    ))
}
