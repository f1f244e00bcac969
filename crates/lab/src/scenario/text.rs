//! Reading the text of a scenario.

use std::path::{Path, PathBuf};

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
    /// Reads a file, or returns the built-in scenario with this name.
    ///
    /// # Errors
    /// If neither exists.
    pub fn load(name: &str) -> Result<Self, ScenarioError> {
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
}

fn read_file(path: &Path) -> Result<String, ScenarioError> {
    let shown = path.display();
    if path.is_dir() {
        return Err(ScenarioError::new(format!("`{shown}` is a directory, not a scenario file")));
    }
    let cannot = |error: std::io::Error| {
        let built_in = builtin::SCENARIOS.map(|scenario| scenario.name);
        let made = ScenarioError::new(format!("cannot read `{shown}`: {error}"));
        made.with_help(match crate::error::nearest(&path.to_string_lossy(), built_in) {
            Some(near) => format!("did you mean the built-in scenario `{near}`?"),
            None => format!("built-in scenarios are {}", built_in.join(", ")),
        })
    };
    let length = std::fs::metadata(path).map_err(cannot)?.len();
    if length > MAX_FILE_BYTES {
        return Err(ScenarioError::new(format!(
            "`{shown}` has {length} bytes: a scenario file has at most {MAX_FILE_BYTES}"
        )));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        ScenarioError::new(format!("`{shown}` is not a text file: byte {at} is not UTF-8"))
            .with_help("a scenario is a TOML file")
    })
}
