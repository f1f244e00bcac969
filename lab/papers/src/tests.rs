//! Rules on synthetic points, and the claims that are compiled in.

use serde_json::{Value, json};

use super::claim::{Claim, Paper, Rule};
use super::figure::Picture;
use super::plan::{NO_HOSTS, Plan, Request};
use super::rule::{self, Points, RuleError, Ruling};
use super::select::key;
use super::{figure, items, papers};

fn rule(text: &str) -> Rule {
    toml::from_str(&format!("say = 'so'\n{text}")).unwrap()
}

/// Returns points where Homa's goodput falls with the number of senders and NDP's does not. Homa's last point is
/// unfinished.
fn points() -> Points {
    let none = || vec![None; 6];
    let mut points =
        Points { keys: Vec::new(), summaries: Vec::new(), failures: none(), busy: none() };
    for (transport, senders, goodput, p99) in [
        ("homa", 1, 0.9, json!(100.0)),
        ("homa", 10, 0.8, json!(200.0)),
        ("homa", 100, 0.4, json!(null)),
        ("ndp", 1, 0.9, json!(110.0)),
        ("ndp", 10, 0.9, json!(120.0)),
        ("ndp", 100, 0.9, json!(130.0)),
    ] {
        points.keys.push(key(&[("workload.senders", senders.into())], transport));
        points.summaries.push(Some(json!({
            "goodput_gbps": goodput,
            "latency_us": { "p99": p99 },
            "by_sender_gbps": [goodput / 3.0, goodput * 2.0 / 3.0],
            "by_size": [{ "up_to_bytes": 30, "p50": 1.2, "p99": 2.0 }],
        })));
    }
    points
}

fn apply(text: &str) -> Ruling {
    let rule = rule(text);
    let points = points();
    rule::check(&rule, &points.keys, &points.keys).unwrap();
    rule::apply(&rule, &points).unwrap()
}

fn trouble(text: &str) -> RuleError {
    rule::apply(&rule(text), &points()).unwrap_err()
}

#[test]
fn the_ends_of_a_sweep_are_compared() {
    let falls = |transport: &str| {
        apply(&format!(
            "left = {{ metric = 'goodput_gbps', of = {{ transport = '{transport}' }}, at = {{ workload.senders = 'max' }} }}\n\
             is = '<'\n\
             right = {{ metric = 'goodput_gbps', of = {{ transport = '{transport}' }}, at = {{ workload.senders = 'min' }} }}"
        ))
    };
    let homa = falls("homa");
    assert_eq!(homa.holds, Some(true));
    assert_eq!((homa.checks[0].left, homa.checks[0].right), (0.4, 0.9));
    assert!((homa.checks[0].margin - 5.0 / 9.0).abs() < 1e-9);
    assert_eq!(homa.here, "0.400 Gbit/s < 0.900 Gbit/s (0.444 times)");
    let ndp = falls("ndp");
    assert_eq!(ndp.holds, Some(false));
    assert!(ndp.here.contains("not <"), "{}", ndp.here);
}

#[test]
fn each_value_of_a_key_is_a_case_and_the_worst_is_named() {
    let above = |senders: &str, tolerance: f64| {
        apply(&format!(
            "of = {{ workload.senders = '{senders}' }}\nfor_each = 'workload.senders'\n\
             tolerance = {tolerance:?}\n\
             left = {{ metric = 'goodput_gbps', of = {{ transport = 'ndp' }} }}\nis = '>'\n\
             right = {{ metric = 'goodput_gbps', of = {{ transport = 'homa' }} }}"
        ))
    };
    let from_10 = above(">= 10", 0.0);
    assert_eq!((from_10.holds, from_10.checks.len()), (Some(true), 2));
    assert!(
        from_10.here.starts_with("all 2 comparisons hold; the closest, senders 10:"),
        "{}",
        from_10.here
    );
    // At one sender they are equal: the left side is only above with a tolerance.
    let from_1 = above(">= 1", 0.0);
    assert_eq!(from_1.holds, Some(false));
    assert!(
        from_1.here.starts_with("2 of 3 comparisons hold; the worst, senders 1:"),
        "{}",
        from_1.here
    );
    assert_eq!(above(">= 1", 0.02).holds, Some(true));
}

#[test]
fn cases_of_the_left_side_can_meet_one_point_on_the_right() {
    let each = apply(
        "for_each = 'workload.senders'\n\
         left = { metric = 'goodput_gbps', of = { transport = 'homa', workload.senders = ['> 1'] } }\n\
         is = '<'\n\
         right = { metric = 'goodput_gbps', of = { transport = 'homa', workload.senders = 1 } }",
    );
    assert_eq!((each.holds, each.checks.len()), (Some(true), 2));
    assert!(each.checks.iter().all(|check| check.right == 0.9));
}

#[test]
fn the_value_of_a_key_can_be_added_to_the_right_side() {
    let text = "for_each = 'workload.senders'\n\
         left = { metric = 'latency_us.p99', of = { transport = 'ndp' } }\nis = '<='\n\
         right = { metric = 'latency_us.p99', of = { transport = 'ndp', workload.senders = 1 }, times = 0.9, plus = 'workload.senders' }";
    let sides: Vec<(f64, f64)> =
        apply(text).checks.iter().map(|check| (check.left, check.right)).collect();
    assert_eq!(sides, [(110.0, 100.0), (120.0, 109.0), (130.0, 199.0)]);
    let alone = text.replace("for_each = 'workload.senders'\n", "");
    let error = Paper::parse("x.toml", &file(&alone), None).unwrap_err().to_string();
    assert!(error.contains("`plus` needs `workload.senders` in `for_each`"), "{error}");
}

#[test]
fn the_best_of_several_points_and_the_worst_of_a_list() {
    let best = apply(
        "left = { metric = 'goodput_gbps', of = { transport = 'homa' }, over = 'max' }\n\
         is = '>='\nright = { metric = 'goodput_gbps', of = { transport = 'ndp' }, over = 'mean' }",
    );
    assert_eq!((best.holds, best.checks[0].left), (Some(true), 0.9));
    let worst = apply(
        "left = { metric = 'by_sender_gbps[*]', each = 'min', of = { transport = 'homa' }, over = 'min' }\n\
         is = 'within'\ntolerance = 0.01\nright = { value = 0.4, times = 0.3333 }",
    );
    assert_eq!(worst.holds, Some(true), "{worst:?}");
}

#[test]
fn the_order_of_cases_is_compared_where_they_are_apart() {
    // On the right 0.9, 0.8 and 0.4, and on the left 110, 120 and 130, or the opposite order.
    let of = |tolerance: f64, times: f64| {
        apply(&format!(
            "for_each = 'workload.senders'\n\
             left = {{ metric = 'latency_us.p99', times = {times:?}, of = {{ transport = 'ndp' }} }}\n\
             is = 'same-order'\n\
             right = {{ metric = 'goodput_gbps', of = {{ transport = 'homa' }} }}\n\
             tolerance = {tolerance:?}"
        ))
    };
    let all = of(0.0, 1.0);
    assert_eq!((all.holds, all.checks.len()), (Some(false), 3), "{all:?}");
    assert_eq!(of(0.0, -1.0).holds, Some(true));
    // 0.9 and 0.8 are 12.5 % apart.
    let apart = of(0.15, -1.0);
    assert_eq!((apart.holds, apart.checks.len()), (Some(true), 2), "{apart:?}");
    let cases: Vec<_> = apart.checks.iter().map(|check| check.case.as_str()).collect();
    assert_eq!(cases, ["senders 1 and senders 100", "senders 10 and senders 100"]);
}

#[test]
fn a_mean_is_shown_with_its_spread() {
    let ruling = apply(
        "left = { metric = 'goodput_gbps', of = { transport = 'homa' }, over = 'mean', times = 2 }\n\
         is = '<'\nright = { metric = 'goodput_gbps', of = { transport = 'ndp', workload.senders = 1 }, over = 'mean' }",
    );
    // Of one point there is no spread.
    assert_eq!(
        ruling.here,
        "1.40 Gbit/s [0.800 Gbit/s to 1.80 Gbit/s] not < 0.900 Gbit/s (1.56 times)"
    );
}

#[test]
fn a_median_is_the_middle_or_between_the_two_in_the_middle() {
    use super::claim::Fold::Median;
    for (numbers, median) in [
        (&[3.0][..], 3.0),
        (&[9.0, 1.0], 5.0),
        (&[9.0, 1.0, 2.0], 2.0),
        (&[1.0, 8.0, 2.0, 4.0], 3.0),
    ] {
        assert_eq!(Median.of(numbers), median, "{numbers:?}");
    }
    assert!(Median.of(&[]).is_nan());
    let ruling = apply(
        "left = { metric = 'goodput_gbps', of = { transport = 'homa' }, over = 'median' }\n\
         is = '<'\nright = { metric = 'goodput_gbps', of = { transport = 'ndp', workload.senders = 1 } }",
    );
    assert!(
        ruling.here.starts_with("0.800 Gbit/s [0.400 Gbit/s to 0.900 Gbit/s] <"),
        "{}",
        ruling.here
    );
}

#[test]
fn published_numbers_are_compared_with_measured_ones() {
    let mut whole = points().keys;
    whole.push(key(&[("workload.senders", 1000.into())], "ndp"));
    let apply = |text: &str| {
        let (rule, points) = (rule(text), points());
        let left_out = rule::check(&rule, &points.keys, &points.keys).unwrap_err();
        assert!(left_out.contains("no point has the cell \"b\""), "{left_out}");
        rule::check(&rule, &points.keys, &whole).unwrap();
        rule::apply(&rule, &points).unwrap()
    };
    let cells = |p50: f64| {
        apply(&format!(
            "within = {{ p50 = 0.15, p99 = 0.3 }}\n\
             cells = [\n\
             {{ name = 'a', of = {{ transport = 'ndp', workload.senders = 1 }}, at = 'by_size[up_to_bytes=30]', p50 = {p50:?}, p99 = 2.5 }},\n\
             {{ name = 'b', of = {{ transport = 'ndp', workload.senders = 1000 }}, at = 'by_size[up_to_bytes=30]', p50 = 1.0 }},\n]"
        ))
    };
    let close = cells(1.1);
    assert_eq!((close.holds, close.checks.len()), (Some(true), 2));
    assert!(close.here.contains("1 of the published numbers are not tried"), "{}", close.here);
    let far = cells(1.5);
    assert_eq!(far.holds, Some(false));
    assert!(far.here.contains("the worst, a, p50: 1.20, paper 1.50 (-20 %)"), "{}", far.here);
}

#[test]
fn a_missing_number_decides_nothing() {
    let text = "left = { metric = 'latency_us.p99', of = { transport = 'homa', workload.senders = 100 } }\n\
                is = '<'\nright = { value = 1 }";
    assert!(matches!(trouble(text), RuleError::Missing(why) if why.contains("latency_us.p99")));
    let mut points = points();
    points.summaries[0] = None;
    let text = "left = { metric = 'goodput_gbps', at = { workload.senders = 'min' }, of = { transport = 'homa' } }\n\
                is = '<'\nright = { value = 1 }";
    let why = rule::apply(&rule(text), &points).unwrap_err();
    assert!(matches!(why, RuleError::Missing(why) if why.contains("not finished")));
}

#[test]
fn no_rule_holds_by_its_remaining_messages() {
    let rule_of = |more: &str| {
        rule(&format!(
            "left = {{ metric = 'goodput_gbps', of = {{ transport = 'homa', workload.senders = 10 }} }}\n\
             is = '<'\nright = {{ value = 1 }}\n{more}"
        ))
    };
    let mut points = points();
    points.failures[0] = Some("homa: 3 messages failed".into());
    assert_eq!(rule::apply(&rule_of(""), &points).unwrap().holds, Some(true), "of another point");
    points.failures[1] = points.failures[0].take();
    let ruling = rule::apply(&rule_of(""), &points).unwrap();
    assert_eq!(ruling.holds, None);
    assert!(ruling.here.ends_with(", but of what is compared homa: 3 messages failed"));
    let despite = rule::apply(&rule_of("despite_failures = true"), &points).unwrap();
    assert_eq!(despite.holds, Some(true));
    // A rule that does not hold stays so despite failures, and a rule about failures themselves is decided.
    let fails = rule(
        "left = { metric = 'goodput_gbps', of = { transport = 'homa', workload.senders = 10 } }\n\
                      is = '>'\nright = { value = 1 }",
    );
    assert_eq!(rule::apply(&fails, &points).unwrap().holds, Some(false));
    points.summaries[1] = Some(json!({ "messages": { "failed": 3 } }));
    let counts = rule(
        "left = { metric = 'messages.failed', of = { transport = 'homa', workload.senders = 10 } }\n\
                       is = '<'\nright = { value = 5 }",
    );
    assert_eq!(rule::apply(&counts, &points).unwrap().holds, Some(true));
}

#[test]
fn a_busy_machine_decides_nothing_but_counts() {
    let of_homa = |over: &str, is: &str, right: f64| {
        rule(&format!(
            "left = {{ metric = 'goodput_gbps', of = {{ transport = 'homa' }}, over = '{over}' }}\n\
             is = '{is}'\nright = {{ value = {right:?} }}"
        ))
    };
    let mut points = points();
    let holds = |points: &Points, over, is, right| {
        rule::apply(&of_homa(over, is, right), points).unwrap().holds
    };
    points.busy[0] = Some("homa: host 3 waited".into());
    // Neither what would hold nor what would fail.
    assert_eq!(holds(&points, "max", "<", 1.0), None);
    assert_eq!(holds(&points, "max", ">", 1.0), None);
    let ruling = rule::apply(&of_homa("max", "<", 1.0), &points).unwrap();
    assert!(
        ruling.here.ends_with(", but the machine was busy: homa: host 3 waited"),
        "{}",
        ruling.here
    );
    assert_eq!(holds(&points, "max", "==", 0.9), Some(true), "a count is a count");
    // The median of three is among the two of a quiet machine, until two are of a busy one.
    assert_eq!(holds(&points, "median", "<", 0.85), Some(true));
    points.busy[1] = points.busy[0].clone();
    assert_eq!(holds(&points, "median", "<", 0.85), None);
    points.busy = vec![None; 6];
    points.busy[3] = Some("ndp: of another side".into());
    assert_eq!(holds(&points, "median", "<", 0.85), Some(true));
}

#[test]
fn a_rule_about_something_missing_is_an_error_that_names_it() {
    for (left, named) in [
        (
            "metric = 'goodput', of = { transport = 'homa' }, at = { workload.senders = 'max' }",
            "no `goodput`, only goodput_gbps",
        ),
        ("metric = 'goodput_gbps', of = { transport = 'dctcp' }", "no point is like that"),
        (
            "metric = 'goodput_gbps', of = { workload.load = 0.5 }",
            "no point has the key `workload.load`",
        ),
        (
            "metric = 'goodput_gbps', at = { workload.load = 'max' }",
            "no point has a number at `workload.load`",
        ),
        ("metric = 'goodput_gbps', of = { transport = 'homa' }", "3 points are like that"),
    ] {
        let text = format!("left = {{ {left} }}\nis = '<'\nright = {{ value = 1 }}");
        match trouble(&text) {
            RuleError::Wrong(why) => assert!(why.contains(named), "{why}"),
            other => panic!("{left}: {other:?}"),
        }
    }
}

/// Returns a file with one claim that has this rule.
fn file(rule: &str) -> String {
    format!(
        "paper = 'x'\ntitle = 'X'\nsource = 'nowhere'\n[scenarios.incast]\nfile = 'incast'\n\
         [[claims]]\nid = 'x-one'\nclaim = 'c'\nsource = 's'\npaper = 'p'\nholds_when = 'h'\n\
         scenario = 'incast'\n[[claims.rules]]\nsay = 'so'\nset = 'before'\n{rule}\n"
    )
}

const RULE: &str = "left = { metric = 'goodput_gbps', of = { transport = 'ndp' } }\nis = '>'\n\
                    right = { metric = 'goodput_gbps', of = { transport = 'tcp' } }";

#[test]
fn errors_in_a_file_name_the_mistake_and_its_place() {
    let error = |text: &str| Paper::parse("x.toml", text, None).unwrap_err().to_string();
    assert!(Paper::parse("x.toml", &file(RULE), None).is_ok());
    for (text, named) in [
        (file("left = { value = 1 }"), "it needs `left`, `is` and `right`"),
        (
            file(&RULE.replace("metric = 'goodput_gbps'", "value = 1, metric = 'x'")),
            "either `metric` or `value`",
        ),
        (file(&RULE.replace("goodput_gbps", "g[*]")), "`each` belongs to a metric with [*]"),
        (file(&format!("{RULE}\ntolerance = 2.0")), "tolerances are shares"),
        (file(&RULE.replace("'>'", "'=>'")), "unknown variant `=>`"),
        (file(&format!("{RULE}\ntolerence = 0.1")), "unknown field `tolerence`"),
        (
            file(RULE).replace("scenario = 'incast'", "scenario = 'incats'"),
            "did you mean `incast`?",
        ),
        (
            file("within = { p50 = 0.1 }\ncells = [{ name = 'a', at = 'x', p99 = 1.0 }]"),
            "`within` says nothing of `p99`",
        ),
        (
            file(&RULE.replace(
                "metric = 'goodput_gbps', of = { transport = 'tcp' }",
                "metric = 'goodput_gpbs'",
            )),
            "claim `x-one`: rule \"so\": `goodput_gpbs` is no metric: there is no `goodput_gpbs`; did you mean `goodput_gbps`?",
        ),
        (
            file("within = { p98 = 0.1 }\ncells = [{ name = 'a', at = 'slowdown', p98 = 1.0 }]"),
            "claim `x-one`: rule \"so\": cell \"a\": `slowdown.p98` is no metric",
        ),
        (
            file(RULE)
                + "[[claims.figures]]\nname = 'f'\ntitle = 'F'\nx.key = 'transport'\ny.metric = 'dropz'\n",
            "claim `x-one`: figure `f`: `dropz` is no metric",
        ),
        (
            file(RULE)
                + "[[claims.figures]]\nname = 'f'\ntitle = 'F'\nkind = 'cdf'\nlines = [{ name = 'l', metric = 'goodput' }]\n",
            "claim `x-one`: figure `f`: `goodput` is no metric",
        ),
        (file("left = { value = nan }\nis = '<'\nright = { value = 1 }"), "are finite"),
        (file(RULE).replace("set = 'before'", ""), "it decides: `set` says"),
        (file(RULE).replace("x-one", "../x"), "a name has letters"),
        (
            file(RULE) + "[[originals]]\nplace = 'figure 1'\ntitle = 'T'\nhere = ['x-one/f']\n",
            "x.toml, [[originals]] figure 1, \"T\": claim `x-one` has no figure `f`",
        ),
        (
            file(RULE) + "[[originals]]\nplace = 'figure 1'\ntitle = 'T'\n",
            "neither `here` nor a `note`",
        ),
        (file(RULE) + &file(RULE)[file(RULE).find("[[claims]]").unwrap()..], "another claim"),
        ("paper = 3".into(), "invalid type"),
    ] {
        let message = error(&text);
        assert!(message.contains(named), "{message}");
        assert!(message.contains("x.toml"), "{message}");
    }
}

#[test]
fn quick_makes_runs_smaller_and_nothing_else() {
    let quick = |set: &str, only: &str| {
        let text = file(RULE).replace(
            "file = 'incast'\n",
            &format!("file = 'incast'\nquick.set = [{set}]\nquick.only = {{ {only} }}\n"),
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.toml");
        std::fs::write(&path, text).unwrap();
        let paper = path.to_string_lossy().into_owned();
        let request = Request { paper: Some(paper), quick: true, ..Request::default() };
        let plan = Plan::new(&request).unwrap();
        match &plan.claims[0].trouble {
            None => Ok(plan.runs[0].scenario.points.len()),
            Some(trouble) => Err(trouble.clone()),
        }
    };
    assert_eq!(quick("'measure.time_limit=\"100 ms\"'", "transport = ['ndp', 'tcp']"), Ok(2));
    for (set, only, named) in [
        ("'workload.sizes=\"1 KB\"'", "", "`workload.sizes` is not a size or a number"),
        ("'measure.time_limit=\"100 s\"'", "", "the time_limit is larger"),
        ("", "transport = 'nobody'", "leaves no point"),
        ("", "workload.load = 1", "no point has the key `workload.load`"),
        ("", "transport = 'tcp'", "left side: no point is like that"),
    ] {
        let why = quick(set, only).unwrap_err();
        assert!(why.contains(named), "{why}");
    }
}

fn claims(papers: &[Paper]) -> Vec<&Claim> {
    papers.iter().flat_map(|paper| &paper.content.claims).collect()
}

#[test]
fn every_claim_is_there() {
    let papers = papers().unwrap();
    let ids: Vec<&str> = papers.iter().flat_map(Paper::ids).collect();
    assert_eq!(
        ids,
        [
            "homa-sigcomm",
            "homa-rtt",
            "homa-window",
            "homa-mixed-rtt",
            "homa-incast",
            "homa-tcp",
            "homa-stream",
            "homa-future",
            "polo-core-collapse",
            "polo-edge-rto",
            "polo-core",
            "polo-edge",
            "polo-queue",
            "polo-recovery",
            "polo-tail",
            "polo-tail-phost",
            "polo-incast",
            "pfabric-sigcomm",
            "sird-queues",
            "sird-slowdown",
            "sird-incast",
            "swift-permutation",
            "swift-incast",
            "swift-incast-collapse",
            "swift-fairness",
            "swift-load",
            "swift-dctcp-tail",
            "dcpim-rounds",
            "dcpim-load",
            "dcpim-slowdown",
            "eqds-one",
            "eqds-bidir",
            "eqds-incast",
            "eqds-incast-128",
            "eqds-permutation",
            "eqds-permutation-one-path",
            "eqds-permutation-1024",
            "eqds-permutation-1024-one-path",
            "uet-nscc-bounds",
            "uet-rccc-bounds",
            "uet-both-bounds",
            "orca-time",
            "orca-link-bound",
            "orca-cores",
            "orca-send-time",
            "orca-wait-time",
            "orca-scaling",
            "orca-failover",
            "orca-state",
            "orca-overhead",
            "frisbee-2003",
            "frisbee-2003-nak",
            "swp2p-load",
            "swp2p-zero",
            "swp2p-late",
            "swp2p-runtime",
            "swp2p-hiccup",
            "swp2p-batch",
            "swp2p-order",
            "swp2p-efficiency",
            "ordc-absorption",
            "ordc-groups",
            "ordc-jct",
            "ordc-placement",
            "ordc-correct",
            "ordc-oracle",
            "two-worlds-incast",
            "two-worlds-load",
            "two-worlds-split",
            "two-worlds-cast",
            "two-worlds-cast-8",
            "two-worlds-frisbee",
            "two-worlds-image",
            "two-worlds-reduce",
        ]
    );
    for claim in claims(&papers) {
        assert!(claim.rules.iter().any(|rule| !rule.say.is_empty()), "{}", claim.id);
    }
    let listed = items(&papers);
    assert_eq!(listed.len(), ids.len());
    for field in ["id", "system", "claim", "paper", "rule", "scenario"] {
        assert!(listed.iter().all(|item| item.facts[field] != Value::Null), "{field}");
    }
}

/// Rules and figures name points that exist in the full and in the quick run of their scenarios.
/// Remarks have figures of earlier runs, whose day must be known.
#[test]
fn remarks_are_dated() {
    for paper in papers().unwrap() {
        let has_remarks = |claim: &Claim| !claim.cause.is_empty() || !claim.deviations.is_empty();
        let day = &paper.content.written;
        let is_day = day.len() == 10 && day.split('-').all(|part| part.parse::<u16>().is_ok());
        assert!(is_day || !paper.content.claims.iter().any(has_remarks), "{}", paper.name());
    }
}

#[test]
fn every_rule_and_figure_finds_its_points() {
    for quick in [false, true] {
        let plan = Plan::new(&Request { quick, ..Request::default() }).unwrap();
        for planned in &plan.claims {
            // Without real hosts nothing but that is wrong with claims about both worlds.
            let is_real = planned.runs.values().any(|run| plan.runs[*run].real.is_some());
            let expected = is_real.then_some(NO_HOSTS);
            assert_eq!(planned.trouble.as_deref(), expected, "{}", planned.claim.id);
        }
    }
}

#[test]
fn the_documented_example_is_a_file_of_claims() {
    let docs = include_str!("../../../docs/papers.md");
    let example = docs.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let paper = Paper::parse("docs.toml", example.unwrap(), None).unwrap();
    assert_eq!(paper.ids().collect::<Vec<_>>(), ["mine-incast"]);
}

#[test]
fn lines_of_a_figure_must_be_distinguishable() {
    let figure = |text: &str| toml::from_str(&format!("name = 'f'\ntitle = 'F'\n{text}")).unwrap();
    let keys = points().keys;
    let sweep = "x = { key = 'workload.senders' }\ny = { metric = 'goodput_gbps' }\n";
    assert_eq!(figure::check(&figure(sweep), &keys), Ok(()));
    for (text, named) in [
        ("kind = 'cdf'".to_owned(), "does not distinguish its points"),
        (format!("{sweep}series = 'seed'"), "has a key `seed`"),
        (format!("{sweep}of = {{ transport = 'tcp' }}"), "it shows no point"),
        ("kind = 'by-size'\nfor_each = 'workload.senders'".to_owned(), "`y.metric` is"),
    ] {
        let why = figure::check(&figure(&text), &keys).unwrap_err();
        assert!(why.contains(named), "{why}");
    }
}

#[test]
fn figures_show_what_there_is() {
    let text = "name = 'f'\ntitle = 'F'\nx = { key = 'workload.senders' }\n\
                y = { metric = 'latency_us.p99' }\nlines = [{ name = 'limit', y = 150.0 }]\n\
                published = [{ name = 'paper', points = [[1, 90.0]] }]";
    let (points, results) = (points(), vec![None; 6]);
    let charts = figure::draw(&toml::from_str(text).unwrap(), &points, &results).unwrap();
    let [(name, Picture::Lines(chart))] = &charts[..] else { panic!("{charts:?}") };
    assert_eq!(name, "f");
    let lines: Vec<(&str, usize)> =
        chart.series.iter().map(|series| (&*series.label, series.points.len())).collect();
    // Homa's last point has no number.
    assert_eq!(lines, [("homa", 2), ("ndp", 3), ("paper", 1), ("limit", 2)]);
    assert_eq!(chart.series[3].points, [(1.0, 150.0), (100.0, 150.0)]);
    // The x axis has categories where values are not numbers.
    let text = text.replace("workload.senders", "transport");
    let text = format!("{text}\nseries = 'workload.senders'");
    let charts = figure::draw(&toml::from_str(&text).unwrap(), &points, &results).unwrap();
    let Picture::Lines(chart) = &charts[0].1 else { panic!("{charts:?}") };
    let names: Vec<&str> = chart.x.names.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["homa", "ndp"]);
}
