//! Recipes: each runs to its end, and the page of recipes has each.

use std::path::Path;

use rackweave_lab::{Batch, Scenario, builtin};

const PAGE: &str = include_str!("../../../../docs/recipes.md");

/// Fewer messages than a user measures, and smaller files: what is tested is that every point ends.
fn shortened(text: &str) -> Vec<String> {
    let shorter = [
        ("[measure]\nmessages", "measure.messages=300"),
        ("[measure]\nduration", "measure.duration='100 us'"),
        ("[workload.cast]", "workload.cast.files=['1 MB']"),
        ("[workload.image]", "workload.image.size='4 MiB'"),
        ("[workload.allreduce]", "workload.allreduce.size='100 KB'"),
    ];
    shorter.iter().filter(|it| text.contains(it.0)).map(|it| it.1.to_owned()).collect()
}

#[test]
fn every_point_of_a_recipe_ends_with_all_messages() {
    let recipes: Vec<_> = builtin::SCENARIOS.iter().filter(|it| it.is_recipe()).collect();
    assert_eq!(recipes.len(), 13);
    for recipe in recipes {
        let sets = shortened(recipe.text);
        let scenario =
            Scenario::parse(recipe.file, recipe.text, Path::new("."), &sets, None).unwrap();
        let points = scenario.points.len();
        let results = Batch::new(scenario).run(None).unwrap();
        assert_eq!(results.points.len(), points, "{}", recipe.name);
        for point in &results.points {
            let messages = &point.summary.messages;
            assert!(messages.completed > 0, "{} {}", recipe.name, point.label);
            assert_eq!((messages.failed, messages.unfinished), (0, 0), "{}", recipe.name);
        }
    }
}

#[test]
fn the_page_has_every_recipe() {
    for recipe in builtin::SCENARIOS.iter().filter(|it| it.is_recipe()) {
        let row = format!("| [`{}`](../{}) |", recipe.name, recipe.file);
        assert!(PAGE.contains(&row), "no row of docs/recipes.md has {row}");
    }
}
