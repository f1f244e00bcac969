//! Reports from files are those of the runs that wrote the files.

use std::path::{Path, PathBuf};

use super::*;
use crate::output::OutputDir;
use crate::run::Batch;
use crate::scenario::Scenario;
use crate::sweep::tests::SCENARIOS;

const SMALL: &str = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'homa'\n\
    workload = { arrivals = 'poisson', sizes = 'W1', load = 0.5 }\nmeasure.messages = 200\n\
    [[background]]\ntransport = { name = 'dctcp' }\narrivals = 'incast'\nsizes = '30 KB'\nreceiver = 0\n\
    [sweep]\ntransport.name = ['homa', 'tcp']\n";

/// Runs a scenario, and writes its results to a folder.
fn run(text: &str, sets: &[&str], folder: &Path) -> PathBuf {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::parse("small.toml", text, Path::new("."), &sets, None).unwrap();
    let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();
    let out = OutputDir::prepare(folder).unwrap();
    out.write(&scenario, &results, "rackweave run small.toml --set 'a=b'").unwrap();
    folder.to_owned()
}

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Shows where two texts differ, which may be long.
fn assert_same(expected: &str, got: &str, name: &str) {
    let place = expected.bytes().zip(got.bytes()).position(|(a, b)| a != b);
    let place = place.unwrap_or(expected.len().min(got.len()));
    let part = |text: &str| -> String {
        String::from_utf8_lossy(&text.as_bytes()[place.saturating_sub(80)..])
            .chars()
            .take(160)
            .collect()
    };
    assert!(expected == got, "{name}: {:?} is not {:?}", part(got), part(expected));
}

fn redraw(folders: &[PathBuf], out: &Path) -> Redrawn {
    let redrawn = Redrawn::read(folders).unwrap();
    redrawn.write(&OutputDir::prepare(out).unwrap()).unwrap();
    redrawn
}

#[test]
fn a_page_is_drawn_from_files_as_from_the_run() {
    for scenario in SCENARIOS {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run(scenario, &[], folder.path());
        let names = ["report.html", "slowdown.svg", "summary.json", "points.csv"];
        let before = names.map(|name| text(folder.path(), name));
        std::fs::write(folder.path().join("report.html"), "damaged").unwrap();
        let redrawn = redraw(&[folder.path().to_owned()], folder.path());
        assert_eq!(redrawn.notes().count(), 0);
        for (name, before) in names.iter().zip(&before) {
            assert_same(before, &text(folder.path(), name), name);
        }
        // In another directory, with copies of all files.
        redraw(&[folder.path().to_owned()], other.path());
        for (name, before) in names.iter().zip(&before) {
            assert_same(before, &text(other.path(), name), name);
        }
    }
}

#[test]
fn runs_of_single_seeds_are_the_sweep_over_them() {
    let at = tempfile::tempdir().unwrap();
    let folders = [3, 4, 5]
        .map(|seed| run(SMALL, &[&format!("seed={seed}")], &at.path().join(seed.to_string())));
    let swept = run(SMALL, &["sweep.seed=[3, 4, 5]"], &at.path().join("swept"));
    let all = at.path().join("all");
    let merged = redraw(&folders, &all);
    assert_eq!(merged.results().points.len(), 6);
    // The index of the first seed's point is another, as the sweep has the seeds side by side.
    let means = |folder: &Path| -> Vec<String> {
        let text = text(folder, "over_seeds.csv");
        text.lines().map(|line| line.split_once(',').unwrap().1.to_owned()).collect()
    };
    assert_eq!(means(&all), means(&swept));
    let rows = |name: &str| text(&all, name).lines().count();
    for name in ["points.csv", "links.csv", "streams.csv", "latency_cdf.csv"] {
        let parts: usize =
            folders.iter().map(|folder| text(folder, name).lines().count() - 1).sum();
        assert_eq!(rows(name), parts + 1, "{name}");
    }
    let page = text(&all, "report.html");
    assert!(page.contains("means over 3 seeds"), "the page says that these are means");
    assert_eq!(
        page.matches("<pre><code>rackweave run small.toml").count(),
        1,
        "one command for all"
    );
    // What was written is a result, which can be drawn and merged.
    let again = at.path().join("again");
    let more = run(SMALL, &["seed=6"], &at.path().join("6"));
    let merged = redraw(&[all, more], &again);
    assert_eq!(merged.results().points.len(), 8);
    assert!(text(&again, "report.html").contains("means over 4 seeds"));
}

#[test]
fn different_runs_are_side_by_side_by_what_differs() {
    let at = tempfile::tempdir().unwrap();
    let folder = |name: &str, sets: &[&str]| run(SMALL, sets, &at.path().join(name));
    let (small, large) = (folder("a", &[]), folder("b", &["workload.load=0.2"]));
    let merged = redraw(&[small.clone(), large], &at.path().join("loads"));
    let labels: Vec<&str> = merged.results().points.iter().map(|p| p.label.as_str()).collect();
    assert_eq!(labels, ["homa, load 0.5", "tcp, load 0.5", "homa, load 0.2", "tcp, load 0.2"]);
    let head = text(&at.path().join("loads"), "points.csv").lines().next().unwrap().to_owned();
    assert!(head.starts_with("point,transport,label,workload.load,"), "{head}");

    // Other transports differ in all of their settings, which distinguish nothing.
    let ndp = folder("c", &["sweep.transport.name=['dctcp']"]);
    let merged = redraw(&[small.clone(), ndp], &at.path().join("transports"));
    let labels: Vec<&str> = merged.results().points.iter().map(|p| p.label.as_str()).collect();
    assert_eq!(labels, ["homa", "tcp", "dctcp"]);

    // Nothing differs: two versions, say.
    let same = folder("d", &[]);
    let merged = redraw(&[small, same], &at.path().join("same"));
    let labels: Vec<&str> = merged.results().points.iter().map(|p| p.label.as_str()).collect();
    assert_eq!(labels, ["homa, result a", "tcp, result a", "homa, result d", "tcp, result d"]);
}

/// The second result's points follow those of the first, and so do the numbers of its captures.
#[test]
fn captures_are_copied_under_the_numbers_of_their_points() {
    let captured = format!(
        "{}\n",
        SMALL.replace(
            "measure.messages = 200",
            "measure = { messages = 50, capture = ['host 0 receives'] }"
        )
    );
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folders =
        [run(&captured, &[], one.path()), run(&captured, &["workload.load=0.3"], other.path())];
    let of = |folder: &Path, n: usize| {
        std::fs::read(folder.join(format!("capture-{n}.pcapng"))).unwrap()
    };
    let both = tempfile::tempdir().unwrap();
    redraw(&folders, both.path());
    for n in 0..4 {
        assert_eq!(of(both.path(), n), of(&folders[n / 2], n % 2), "{n}");
    }
    assert_ne!(of(both.path(), 0), of(both.path(), 2));
    // Those of an earlier report with more points go.
    redraw(&folders[..1], both.path());
    assert!(!both.path().join("capture-2.pcapng").exists());
}

#[test]
fn what_is_no_complete_result_is_refused_with_the_reason() {
    let at = tempfile::tempdir().unwrap();
    let error = |folders: &[&Path]| {
        let folders: Vec<PathBuf> = folders.iter().map(|it| (*it).to_owned()).collect();
        Redrawn::read(&folders).unwrap_err().to_string()
    };
    assert!(error(&[at.path()]).contains("has no results"));
    assert!(error(&[&at.path().join("none")]).contains("has no results"));
    std::fs::write(at.path().join(crate::sweep::SWEEP), "{}").unwrap();
    assert!(error(&[at.path()]).contains("has points of a sweep, and no results yet"));

    let good = run(SMALL, &[], &at.path().join("good"));
    assert!(error(&[&good, &good.join("summary.json")]).contains("are the same directory"));
    let both = Redrawn::read(&[good.clone(), run(SMALL, &[], &at.path().join("b"))]).unwrap();
    let into = both.write(&OutputDir::prepare(&good).unwrap()).unwrap_err();
    assert!(into.to_string().contains("cannot be written to one of them"), "{into}");

    let summary = text(&good, "summary.json");
    let write = |name: &str, text: &str| std::fs::write(good.join(name), text).unwrap();
    for (bad, reason) in [
        (summary[..summary.len() / 2].to_owned(), "EOF while parsing"),
        ("{\"claims\": []}".to_owned(), "it has no list `points`"),
        (summary.replace("\"p99\": ", "\"p98\": "), "(it names version"),
        (summary.replace("\"all done\"", "\"at last\""), "no end of a run: `at last`"),
    ] {
        write("summary.json", &bad);
        let error = error(&[&good]);
        assert!(error.contains(reason) && error.contains("is not a summary"), "{error}");
    }
    write("summary.json", &summary.replace("\"version\": \"", "\"version\": \"0.0.1-"));
    let old = Redrawn::read(std::slice::from_ref(&good)).unwrap();
    assert!(old.notes().next().unwrap().contains("is of Rackweave 0.0.1-"));
    write("summary.json", &summary);
    let links = text(&good, "links.csv");
    write("links.csv", &links.replacen("utilisation", "use", 1));
    assert!(error(&[&good]).contains("links.csv has no column `utilisation`"));
    std::fs::remove_file(good.join("links.csv")).unwrap();
    assert!(error(&[&good]).contains("is incomplete: it has no links.csv"));
}
