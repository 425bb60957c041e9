//! Settings from environment variables, which are read once.

use std::env;
use std::path::{Path, PathBuf};

use gpuheap_emu::{Account, Profile};

use crate::description::Description;

const NVML: &str = "GPUHEAP_EMULATED_NVML";
const DEVICE: &str = "GPUHEAP_EMULATED_DEVICE";
const DRIVER: &str = "GPUHEAP_EMULATED_DRIVER";
const ACCOUNT: &str = "GPUHEAP_EMULATED_ACCOUNT";

/// Settings of the emulated NVML.
pub(crate) struct Settings {
    pub(crate) description: Description,
    /// Devices that `GPUHEAP_EMULATED_DEVICE` selects. They are used if neither the user's
    /// description of the machine nor an emulated driver lists devices.
    pub(crate) profiles: Vec<Profile>,
    /// CUDA version, 1000 × major + 10 × minor; `None` if it is not set.
    pub(crate) cuda: Option<i32>,
    /// Account file that emulated drivers share.
    pub(crate) account: Option<PathBuf>,
}

impl Settings {
    /// Reads the variables. `variable` returns the value of a variable; `None` if it is not set.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let description = variable(NVML).map_or_else(|| Ok(Description::default()), describe)?;
        let profiles = match variable(DEVICE) {
            None => vec![Profile::h200()],
            Some(text) => Profile::list(&text).ok_or_else(|| {
                let names = Profile::NAMES.join(", ");
                format!("{DEVICE}={text:?} is not valid; use {names}, bytes such as 16GiB, or a description")
            })?,
        };
        let (source, version) = match &description.cuda {
            Some(version) => ("\"cuda\"", Some(version.clone())),
            None => (DRIVER, variable(DRIVER)),
        };
        let cuda = version.map(|text| {
            cuda(&text).ok_or_else(|| {
                format!("{source}={text:?} is not valid; use a version such as 13.0")
            })
        });
        let account = variable(ACCOUNT).map(PathBuf::from);
        if let Some(path) = account.as_deref().filter(|path| path.exists())
            && let Err(error) = Account::read(path)
        {
            return Err(format!("{ACCOUNT}={:?} cannot be read: {error}", path.display()));
        }
        Ok(Settings { description, profiles, cuda: cuda.transpose()?, account })
    }
}

/// Returns the value of an environment variable; `None` if the variable is unset or empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}

/// Parses a description: `value` is JSON, or the path of a file with JSON.
fn describe(value: String) -> Result<Description, String> {
    let (place, text) = if value.starts_with('{') {
        (NVML.to_owned(), value)
    } else {
        let text = std::fs::read_to_string(Path::new(&value)).map_err(|error| {
            format!("{NVML}={value:?} cannot be read: {error}; name a file, or write JSON: {{...}}")
        })?;
        (format!("{NVML}={value:?}"), text)
    };
    // The error quotes unknown field names, and these may contain line breaks.
    serde_json::from_str(&text)
        .map_err(|error| format!("{place}: {}", error.to_string().replace('\n', "\\n")))
}

fn cuda(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.')?;
    let part = |text: &str| text.parse::<u8>().ok().map(i32::from);
    Some(part(major)? * 1000 + part(minor).filter(|minor| *minor < 100)? * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_two_parts() {
        assert_eq!((cuda("13.0"), cuda("12.4")), (Some(13_000), Some(12_040)));
        for wrong in ["13", "", "new", "13.", "13.100", "-1.0", "300.1"] {
            assert_eq!(cuda(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn description_error_names_place() {
        for (wrong, told) in [
            ("{\"device\": []}", "unknown field `device`"),
            ("{\"devices\": [{\"temperature\": \"hot\"}]}", "line 1 column"),
            ("{\"failures\": {\"nvmlInit_v2\": \"ON_FIRE\"}}", "\"ON_FIRE\" is no failure of NVML"),
            ("{\"failures\": {\"nvmlInit_v2\": \"SUCCESS\"}}", "is no failure of NVML"),
            ("no such file", "cannot be read"),
        ] {
            let error = describe(wrong.to_owned()).unwrap_err();
            assert!(error.starts_with(NVML) && error.contains(told), "{error}");
        }
        assert!(
            describe("{\"failures\": {\"nvmlInit_v2\": \"NVML_ERROR_TIMEOUT\"}}".to_owned())
                .is_ok()
        );
    }
}
