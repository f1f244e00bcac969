//! Reading the text of a scenario.

use std::path::{Path, PathBuf};

use rackweave_scenario::file::read_at_most;
use rackweave_scenario::source::Sources;
use rackweave_scenario::sweep;
use rackweave_scenario::tree::parse_document;

use crate::builtin;
use crate::error::ScenarioError;

/// The size limit of a scenario file, which is far above that of any file that a person writes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The text of a scenario, and the directory of the files that it names.
#[derive(Clone, Debug)]
pub struct ScenarioText {
    /// The name of the scenario in errors.
    pub file: String,
    /// The TOML text.
    pub text: String,
    /// The directory of the files that it names.
    pub folder: PathBuf,
}

impl ScenarioText {
    /// Reads a file, or standard input if the name is `-`, or returns the built-in scenario with this name.
    ///
    /// # Errors
    /// If neither exists.
    pub fn load(name: &str) -> Result<Self, ScenarioError> {
        if name == "-" {
            let text = read_file(Path::new("/dev/stdin"))?;
            return Ok(Self { file: "<stdin>".to_owned(), text, folder: PathBuf::from(".") });
        }
        let path = Path::new(name);
        if !path.exists()
            && let Some(found) = builtin::scenario(name)
        {
            let (file, text) = (found.file.to_owned(), found.text.to_owned());
            return Ok(Self { file, text, folder: PathBuf::from(".") });
        }
        let text = read_file(path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { file: name.to_owned(), text, folder: folder.to_owned() })
    }

    /// Returns the scenario as TOML, without comments, with the arguments of `--set` and the seed, and with these cases (the list as TOML)
    /// in place of its own and of a sweep over transports. Other keys of the sweep stay.
    ///
    /// # Errors
    /// If the text is no TOML, or an argument is none.
    pub(crate) fn with_cases(
        &self,
        sets: &[String],
        seed: Option<u64>,
        cases: &str,
    ) -> Result<String, ScenarioError> {
        let mut sources = Sources::new(&self.file, &self.text);
        let mut root = parse_document(&self.text, 0).map_err(|error| sources.not_toml(0, error))?;
        let mut axes = sweep::take_axes(&mut root, &sources)?;
        let seed = seed.map(|seed| format!("seed={seed}"));
        for argument in sets.iter().chain(&seed) {
            sweep::apply_set(argument, &mut root, &mut axes, &mut sources)?;
        }
        axes.retain(|axis| !matches!(axis.key.as_str(), "transport.name" | "transport.label"));
        let cases = format!("sweep.{}={cases}", sweep::CASES);
        sweep::apply_set(&cases, &mut root, &mut axes, &mut sources)?;
        let mut scenario = root.to_toml();
        let axes = axes.iter().map(|axis| (axis.key.clone(), axis.to_toml()));
        scenario.insert("sweep".to_owned(), toml::Value::Table(axes.collect()));
        Ok(scenario.to_string())
    }
}

fn read_file(path: &Path) -> Result<String, ScenarioError> {
    let shown = path.display();
    if path.is_dir() {
        return Err(ScenarioError::new(format!("`{shown}` is a directory, not a scenario file")));
    }
    let cannot = |error: std::io::Error| {
        let made = ScenarioError::new(format!("cannot read `{shown}`: {error}"));
        made.with_help(match similar(path) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`rackweave list scenarios` lists files here and built-in scenarios".to_owned(),
        })
    };
    let Some(bytes) = read_at_most(path, MAX_FILE_BYTES).map_err(cannot)? else {
        return Err(ScenarioError::new(format!(
            "`{shown}` has more than {MAX_FILE_BYTES} bytes, the most that a scenario file may have"
        )));
    };
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        ScenarioError::new(format!("`{shown}` is not a text file: byte {at} is not UTF-8"))
            .with_help("a scenario is a TOML file")
    })
}

/// The built-in scenario, or the file next to this path, whose name is nearly that of the path.
fn similar(path: &Path) -> Option<String> {
    let named = path.to_string_lossy();
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files: Vec<String> = files
        .filter(|file| file.extension().is_some_and(|it| it == "toml"))
        .map(|file| file.strip_prefix("./").unwrap_or(&file).to_string_lossy().into_owned())
        .collect();
    let built_in = builtin::SCENARIOS.iter().map(|scenario| scenario.name);
    let known: Vec<&str> = files.iter().map(String::as_str).chain(built_in).collect();
    // Whoever forgets the ending, or adds one to the name of a built-in scenario, means the same name.
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let near = [named.as_ref(), &stem, &format!("{named}.toml")]
        .into_iter()
        .find_map(|name| crate::error::nearest(name, known.iter().copied()));
    near.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_replace_transports_and_leave_the_rest_of_a_scenario() {
        let text = "fabric = { topology = 'single-switch', hosts = 8 }\n\
                    workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\n\
                    [sweep]\ntransport.name = ['homa', 'dctcp']\nworkload.load = [0.3, 0.5]";
        let text = text.to_owned();
        let text = ScenarioText { file: "x.toml".into(), text, folder: PathBuf::from(".") };
        let sets = ["measure.messages=300".to_owned()];
        let cases = "[{ transport.name = \"dctcp\", transport.dctcp.initial_window = 6 }]";
        let text = text.with_cases(&sets, Some(7), cases).unwrap();
        let found = crate::scenario::Scenario::parse("y.toml", &text, Path::new("."), &[], None);
        let found = found.unwrap();
        let points = found.points.iter();
        let points =
            points.map(|it| (it.transport.as_str(), it.config.seed, it.config.measure.messages));
        assert_eq!(points.collect::<Vec<_>>(), [("dctcp", 7, 300); 2], "{text}");
        assert!(found.points[0].set.iter().any(|(key, _)| key.ends_with("initial_window")));
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = ScenarioText::load("/dev/zero").unwrap_err().to_string();
        assert!(error.contains("`/dev/zero` has more than 4194304 bytes"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        for (len, fits) in [(MAX_FILE_BYTES, true), (MAX_FILE_BYTES + 1, false)] {
            std::fs::write(&path, vec![b'#'; len as usize]).unwrap();
            assert_eq!(ScenarioText::load(path.to_str().unwrap()).is_ok(), fits, "{len}");
        }
    }
}
