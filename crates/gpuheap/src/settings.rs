//! Reads settings from environment variables, once, when a default is first used.
//!
//! [`TABLE`] is the only list of the variables, with their values and errors. A test compares it
//! with `docs/environment.md`. A builder's settings take precedence.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuheap_pool::PoolKind;
use gpuheap_publish::Access;

use crate::device::{self, Device};
use crate::error::{Error, ErrorKind};
use crate::logging;
use crate::size::Size;
use crate::track::Tracking;

/// Settings from environment variables; `None` for a variable that is not set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// Device that is opened by default.
    pub(crate) device: Option<String>,
    /// Pool of a new heap.
    pub(crate) pool: Option<PoolKind>,
    /// Hard limit of reserved memory.
    pub(crate) hard_limit: Option<Size>,
    /// Soft limit. If more memory is reserved, cached memory is given back.
    pub(crate) soft_limit: Option<Size>,
    /// Limit in bytes of the memory that all heaps reserve together.
    pub(crate) total_limit: Option<u64>,
    /// Level of detail recorded for each allocation.
    pub(crate) track: Option<Tracking>,
    /// File into which allocations are recorded.
    pub(crate) record: Option<PathBuf>,
    /// Access of other processes to the heaps' figures; `None` if not set, or set to off.
    pub(crate) publish: Option<Access>,
    /// `true` if memory is named for profilers.
    pub(crate) nvtx: Option<bool>,
    /// `true` if freed memory is zeroed before it is cached.
    pub(crate) zero_on_free: Option<bool>,
    /// `true` if memory is zeroed before it is handed out.
    pub(crate) zero_on_alloc: Option<bool>,
    /// Memory that a `stitched` pool may take from the driver beyond the peak of live memory, as a
    /// fraction of that peak. After that, the pool maps free pieces to adjacent addresses.
    pub(crate) slack: Option<f64>,
    /// Number of free blocks examined to find one that a stream may use without waiting.
    pub(crate) search_depth: Option<usize>,
    /// Maximum of the freed memory that the pool of a `driver` heap keeps.
    pub(crate) release_threshold: Option<Size>,
}

impl Settings {
    /// Returns the settings of this process, read at the first call.
    ///
    /// # Errors
    ///
    /// [`parse`](Settings::parse) failed. Every call returns the same error.
    pub(crate) fn get() -> Result<&'static Settings, Error> {
        static SETTINGS: OnceLock<Result<Settings, Error>> = OnceLock::new();
        let read = SETTINGS.get_or_init(|| Settings::parse(|variable| std::env::var_os(variable)));
        read.as_ref().map_err(Error::clone)
    }

    /// Reads every variable of the table through `lookup`, and parses its value. An empty variable
    /// counts as not set. Blanks around a value are ignored, and so is the case of its letters,
    /// except in a path.
    ///
    /// # Errors
    ///
    /// A value has no meaning. The error names the variable, its value and the accepted values.
    pub(crate) fn parse(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        for setting in &TABLE {
            let Setting { variable, .. } = setting;
            let Some(value) = lookup(variable) else { continue };
            let read = match value.to_str().map(str::trim) {
                Some("") => continue,
                Some(text) if *variable == RECORD => (setting.read)(&mut settings, text),
                Some(text) => (setting.read)(&mut settings, &text.to_ascii_lowercase()),
                None => Err("is not UTF-8".to_owned()),
            };
            read.map_err(|reason| {
                ErrorKind::BadSetting.error(format!(
                    "{variable} is set to '{}', which {reason}; it takes {}",
                    value.to_string_lossy(),
                    (setting.takes)()
                ))
            })?;
        }
        Ok(settings)
    }
}

impl Device {
    /// Opens the device that `GPUHEAP_DEVICE` names. If the variable is not set, opens the first
    /// real GPU, or an emulated H200 on a machine without a GPU.
    ///
    /// A fallback to an emulated device is logged as a warning by crate `log`, with the places that
    /// were searched; [`DeviceInfo::fallback`](crate::DeviceInfo::fallback) keeps the reason. On a
    /// machine with a GPU whose driver does not work, the call fails and does not fall back. Blocks
    /// while the driver makes the context, like [`open`](Device::open).
    ///
    /// # Errors
    ///
    /// [`open`](Device::open) fails, an environment variable is invalid, or there is no GPU and
    /// gpuheap was built without its feature `emulator`.
    pub fn open_default() -> Result<Device, Error> {
        warn_once();
        if let Some(name) = &Settings::get()?.device {
            return Device::open(name);
        }
        Device::open_first()
    }
}

/// Returns warnings about this process's environment, read at the first call. Each variable that
/// has the library's prefix but is not a setting gets a warning, because it may be a typo.
pub(crate) fn warnings() -> &'static [String] {
    static WARNINGS: OnceLock<Vec<String>> = OnceLock::new();
    WARNINGS.get_or_init(|| unknown_names(std::env::vars_os()))
}

/// Logs [`warnings`] at the first call. Call it with no lock held.
pub(crate) fn warn_once() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        for warning in warnings() {
            logging::warn(logging::ENVIRONMENT, format_args!("{warning}"));
        }
    }
}

/// Returns a warning for each variable that has the prefix of settings but is not a setting.
fn unknown_names(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let is_unknown = |name: &str| {
        name.starts_with("GPUHEAP_")
            && !OTHERS.iter().any(|prefix| name.starts_with(prefix))
            && TABLE.iter().all(|setting| setting.variable != name)
    };
    let set = variables.filter(|(_, value)| !value.is_empty());
    let names = set.map(|(name, _)| name.to_string_lossy().into_owned());
    let warning = |unknown: String| {
        format!(
            "{unknown} changes nothing, because there is no such setting; the nearest is {}: use \
             that one, or unset {unknown}",
            nearest(&unknown)
        )
    };
    let mut warnings: Vec<_> = names.filter(|name| is_unknown(name)).map(warning).collect();
    // Sorted, because the environment has no order.
    warnings.sort();
    warnings
}

/// Returns the setting whose name is most similar to `name`. Similarity is the length of the
/// longest common subsequence divided by the mean of both lengths. An edit distance would map
/// `GPUHEAP_SOFT_LIMIT` to `GPUHEAP_MEMORY_LIMIT` instead of `GPUHEAP_SOFT_MEMORY_LIMIT`.
fn nearest(name: &str) -> &'static str {
    let likeness = |known: &str| {
        let mut row = vec![0_usize; known.len() + 1];
        for one in name.bytes() {
            let mut diagonal = 0;
            for (at, other) in known.bytes().enumerate() {
                let above = row[at + 1];
                row[at + 1] = if one == other { diagonal + 1 } else { above.max(row[at]) };
                diagonal = above;
            }
        }
        2000 * row[known.len()] / (name.len() + known.len())
    };
    let best = TABLE.iter().map(|setting| setting.variable).max_by_key(|known| likeness(known));
    best.unwrap_or_default()
}

/// Prefixes of variables for gpuheap's tests, for the emulated `libcuda.so.1`, for
/// `libgpuheap_malloc.so`, for `gpuheap run` and for `gpuheap dry-run`.
const OTHERS: [&str; 7] = [
    "GPUHEAP_TEST_",
    "GPUHEAP_SOAK_",
    "GPUHEAP_HOSTILE_",
    "GPUHEAP_EMULATED_",
    "GPUHEAP_MALLOC_",
    "GPUHEAP_RUN_",
    "GPUHEAP_STAND_INS",
];

/// A variable of the environment.
struct Setting {
    variable: &'static str,
    /// Returns the accepted values.
    takes: fn() -> String,
    /// Stores a value in the settings, or returns the reason why it is invalid.
    read: fn(&mut Settings, &str) -> Result<(), String>,
}

/// Variable whose value is a path.
const RECORD: &str = "GPUHEAP_RECORD";

const TABLE: [Setting; 14] = [
    Setting {
        variable: "GPUHEAP_DEVICE",
        takes: device::names,
        read: |settings, text| {
            device::check_name(text).map_err(|_| "is not a device".to_owned())?;
            settings.device = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        variable: "GPUHEAP_POOL",
        takes: || join_names(PoolKind::ALL.map(PoolKind::name)),
        read: |settings, text| {
            let pool = PoolKind::parse(text).map_err(|_| "is not a pool".to_owned());
            pool.map(|pool| settings.pool = Some(pool))
        },
    },
    Setting {
        variable: "GPUHEAP_MEMORY_LIMIT",
        takes: sizes,
        read: |settings, text| size(text).map(|size| settings.hard_limit = Some(size)),
    },
    Setting {
        variable: "GPUHEAP_SOFT_MEMORY_LIMIT",
        takes: sizes,
        read: |settings, text| size(text).map(|size| settings.soft_limit = Some(size)),
    },
    Setting {
        variable: "GPUHEAP_TOTAL_MEMORY_LIMIT",
        takes: || "bytes (10000) or a unit (100M, 1.5GiB)".to_owned(),
        read: |settings, text| match size(text)? {
            Size::Bytes(bytes) => {
                settings.total_limit = Some(bytes);
                Ok(())
            }
            Size::Percent(_) => Err("is a share, and of several devices there is none".to_owned()),
        },
    },
    Setting {
        variable: "GPUHEAP_TRACK",
        takes: || join_names(Tracking::ALL.map(Tracking::name)),
        read: |settings, text| {
            let tracking = Tracking::parse(text).map_err(|_| "is not a way of tracking".to_owned());
            tracking.map(|tracking| settings.track = Some(tracking))
        },
    },
    Setting {
        variable: RECORD,
        takes: || "a file that ends with .gph (run.gph); %p is the process id".to_owned(),
        read: |settings, text| {
            let file = text.ends_with(".gph").then(|| PathBuf::from(text));
            settings.record = Some(file.ok_or_else(|| "does not end with .gph".to_owned())?);
            Ok(())
        },
    },
    Setting {
        variable: "GPUHEAP_PUBLISH",
        takes: || format!("{}, control for on with changes", switches()),
        read: |settings, text| {
            settings.publish = match text {
                CONTROL => Some(Access::Control),
                text => switch(text)?.then_some(Access::Read),
            };
            Ok(())
        },
    },
    Setting {
        variable: "GPUHEAP_NVTX",
        takes: switches,
        read: |settings, text| switch(text).map(|is_on| settings.nvtx = Some(is_on)),
    },
    Setting {
        variable: "GPUHEAP_ZERO_ON_FREE",
        takes: switches,
        read: |settings, text| switch(text).map(|is_on| settings.zero_on_free = Some(is_on)),
    },
    Setting {
        variable: "GPUHEAP_ZERO_ON_ALLOC",
        takes: switches,
        read: |settings, text| switch(text).map(|is_on| settings.zero_on_alloc = Some(is_on)),
    },
    Setting {
        variable: "GPUHEAP_SLACK",
        takes: || "a share of the peak (10%), from 0% to 1000%".to_owned(),
        read: |settings, text| share(text).map(|share| settings.slack = Some(share)),
    },
    Setting {
        variable: "GPUHEAP_SEARCH_DEPTH",
        takes: || "a number from 1 to 1000".to_owned(),
        read: |settings, text| {
            let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
            settings.search_depth = Some(number.ok_or_else(|| "is no such number".to_owned())?);
            Ok(())
        },
    },
    Setting {
        variable: "GPUHEAP_RELEASE_THRESHOLD",
        takes: || format!("0, {}", sizes()),
        read: |settings, text| {
            // `size` refuses zero. This setting accepts it.
            let kept = if text == "0" { Size::Bytes(0) } else { size(text)? };
            settings.release_threshold = Some(kept);
            Ok(())
        },
    },
];

/// Value of `GPUHEAP_PUBLISH` that allows changes.
const CONTROL: &str = "control";

/// Parses a percentage as a fraction.
fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=1000.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "is no such share".to_owned())
}

const ON: [&str; 4] = ["1", "true", "on", "yes"];
const OFF: [&str; 4] = ["0", "false", "off", "no"];

fn switch(text: &str) -> Result<bool, String> {
    match () {
        () if ON.contains(&text) => Ok(true),
        () if OFF.contains(&text) => Ok(false),
        () => Err("is neither on nor off".to_owned()),
    }
}

fn switches() -> String {
    format!("{} for on, {} for off", join_names(ON), join_names(OFF))
}

fn size(text: &str) -> Result<Size, String> {
    Size::parse(text).map_err(|error| format!("is not a size: {}", error.reason()))
}

fn sizes() -> String {
    "bytes (10000), a unit (100M, 1.5GiB) or a share of the device (50%)".to_owned()
}

fn join_names<const N: usize>(names: [&str; N]) -> String {
    match &names[..] {
        [] => String::new(),
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        [last, ..] => (*last).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variable: &str, value: &str) -> Result<Settings, Error> {
        Settings::parse(|name| (name == variable).then(|| value.into()))
    }

    #[test]
    fn each_variable_sets_one_setting() -> Result<(), Error> {
        let none = Settings::default();
        let set = |variable, value| parse(variable, value);
        assert_eq!(Settings::parse(|_| None)?, none);
        assert_eq!(
            set("GPUHEAP_DEVICE", "cuda:3")?,
            Settings { device: Some("cuda:3".to_owned()), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_POOL", "binned")?,
            Settings { pool: Some(PoolKind::Binned), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_MEMORY_LIMIT", "1.5GiB")?,
            Settings { hard_limit: Some(Size::Bytes(3 << 29)), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_SOFT_MEMORY_LIMIT", "50%")?,
            Settings { soft_limit: Some(Size::Percent(50.0)), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_TOTAL_MEMORY_LIMIT", "1.5GiB")?,
            Settings { total_limit: Some(3 << 29), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_TRACK", "backtraces")?,
            Settings { track: Some(Tracking::Backtraces), ..none.clone() }
        );
        assert_eq!(set("GPUHEAP_SLACK", "2.5 %")?, Settings { slack: Some(0.025), ..none.clone() });
        assert_eq!(
            set("GPUHEAP_SEARCH_DEPTH", "16")?,
            Settings { search_depth: Some(16), ..none.clone() }
        );
        for (text, kept) in [("0", 0), ("1.5GiB", 3 << 29)] {
            assert_eq!(
                set("GPUHEAP_RELEASE_THRESHOLD", text)?,
                Settings { release_threshold: Some(Size::Bytes(kept)), ..none.clone() }
            );
        }
        for (variable, value) in
            [("GPUHEAP_SLACK", "3"), ("GPUHEAP_SLACK", "-1%"), ("GPUHEAP_SEARCH_DEPTH", "0")]
        {
            assert!(set(variable, value).is_err(), "{variable}={value}");
        }
        assert_eq!(
            set("GPUHEAP_RECORD", " /tmp/Run.gph ")?,
            Settings { record: Some("/tmp/Run.gph".into()), ..none.clone() }
        );
        for (text, publish) in
            [("1", Some(Access::Read)), ("Control", Some(Access::Control)), ("off", None)]
        {
            assert_eq!(set("GPUHEAP_PUBLISH", text)?, Settings { publish, ..none.clone() });
        }
        assert_eq!(
            set("GPUHEAP_ZERO_ON_FREE", "1")?,
            Settings { zero_on_free: Some(true), ..none.clone() }
        );
        assert_eq!(
            set("GPUHEAP_ZERO_ON_ALLOC", "off")?,
            Settings { zero_on_alloc: Some(false), ..none.clone() }
        );
        Ok(())
    }

    #[test]
    fn listed_values_are_accepted() -> Result<(), Error> {
        for pool in PoolKind::ALL {
            assert_eq!(parse("GPUHEAP_POOL", pool.name())?.pool, Some(pool));
        }
        for tracking in Tracking::ALL {
            assert_eq!(parse("GPUHEAP_TRACK", tracking.name())?.track, Some(tracking));
        }
        for (values, on) in [(ON, true), (OFF, false)] {
            for value in values {
                assert_eq!(parse("GPUHEAP_ZERO_ON_FREE", value)?.zero_on_free, Some(on));
            }
        }
        Ok(())
    }

    #[test]
    fn values_ignore_case_and_blanks() -> Result<(), Error> {
        assert_eq!(parse("GPUHEAP_POOL", " Split\n")?.pool, Some(PoolKind::Split));
        assert_eq!(parse("GPUHEAP_ZERO_ON_ALLOC", "True")?.zero_on_alloc, Some(true));
        assert_eq!(parse("GPUHEAP_DEVICE", "CUDA:1")?.device.as_deref(), Some("cuda:1"));
        for setting in &TABLE {
            assert_eq!(parse(setting.variable, "")?, Settings::default());
            assert_eq!(parse(setting.variable, "  ")?, Settings::default());
        }
        Ok(())
    }

    /// Needs the emulator, because the texts name emulated devices.
    #[cfg(feature = "emulator")]
    #[test]
    fn invalid_value_error_lists_valid_ones() {
        let error = |variable, value| parse(variable, value).unwrap_err();
        insta::assert_snapshot!(error("GPUHEAP_DEVICE", "gpu0"), @"GPUHEAP_DEVICE is set to 'gpu0', which is not a device; it takes cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of h200, rtx4090, t4, wsl2-rtx4060");
        insta::assert_snapshot!(error("GPUHEAP_DEVICE", "emulated:K80"), @"GPUHEAP_DEVICE is set to 'emulated:K80', which is not a device; it takes cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of h200, rtx4090, t4, wsl2-rtx4060");
        insta::assert_snapshot!(error("GPUHEAP_POOL", "cuda"), @"GPUHEAP_POOL is set to 'cuda', which is not a pool; it takes none, simple, binned, split, stitched or driver");
        insta::assert_snapshot!(error("GPUHEAP_MEMORY_LIMIT", "12XB"), @"GPUHEAP_MEMORY_LIMIT is set to '12XB', which is not a size: it has an unknown unit; it takes bytes (10000), a unit (100M, 1.5GiB) or a share of the device (50%)");
        insta::assert_snapshot!(error("GPUHEAP_SOFT_MEMORY_LIMIT", "0"), @"GPUHEAP_SOFT_MEMORY_LIMIT is set to '0', which is not a size: it is zero; it takes bytes (10000), a unit (100M, 1.5GiB) or a share of the device (50%)");
        insta::assert_snapshot!(error("GPUHEAP_TRACK", "1"), @"GPUHEAP_TRACK is set to '1', which is not a way of tracking; it takes off, counts or backtraces");
        insta::assert_snapshot!(error("GPUHEAP_ZERO_ON_FREE", "2"), @"GPUHEAP_ZERO_ON_FREE is set to '2', which is neither on nor off; it takes 1, true, on or yes for on, 0, false, off or no for off");
        for setting in &TABLE {
            let text = error(setting.variable, "?!").to_string();
            assert!(text.starts_with(&format!("{} is set to '?!'", setting.variable)), "{text}");
            assert!(text.ends_with(&(setting.takes)()), "{text}");
        }
    }

    #[test]
    fn unknown_variable_warns_with_nearest_setting() {
        let check =
            |name: &str, value: &str| unknown_names([(name.into(), value.into())].into_iter());
        let expected = "GPUHEAP_HARD_LIMIT changes nothing, because there is no such setting; the \
            nearest is GPUHEAP_MEMORY_LIMIT: use that one, or unset GPUHEAP_HARD_LIMIT";
        assert_eq!(check("GPUHEAP_HARD_LIMIT", "1GiB"), [expected]);
        let known = TABLE.iter().map(|setting| setting.variable);
        for name in known.chain([
            "GPUHEAP_TEST_X",
            "GPUHEAP_EMULATED_DEVICE",
            "GPUHEAP_MALLOC_WAIT",
            "GPUHEAP_STAND_INS",
            "PATH",
            "GPUHEAPS",
        ]) {
            assert_eq!(check(name, "x"), [""; 0], "{name}");
        }
        assert_eq!(check("GPUHEAP_HARD_LIMIT", ""), [""; 0]);
        for (slip, meant) in [
            ("GPUHEAP_DEVISE", "GPUHEAP_DEVICE"),
            ("GPUHEAP_TRACE", "GPUHEAP_TRACK"),
            ("GPUHEAP_TRAKC", "GPUHEAP_TRACK"),
            ("GPUHEAP_POOLS", "GPUHEAP_POOL"),
            ("GPUHEAP_HARD_MEMORY_LIMIT", "GPUHEAP_MEMORY_LIMIT"),
            ("GPUHEAP_SOFT_LIMIT", "GPUHEAP_SOFT_MEMORY_LIMIT"),
            ("GPUHEAP_ZERO_ON_ALLOCATE", "GPUHEAP_ZERO_ON_ALLOC"),
        ] {
            assert_eq!(nearest(slip), meant, "{slip}");
        }
        let two = ["GPUHEAP_B", "GPUHEAP_A"].map(|name| (name.into(), "1".into()));
        let two = unknown_names(two.into_iter());
        assert!(two.len() == 2 && two[0].starts_with("GPUHEAP_A changes nothing"), "{two:?}");
    }

    #[cfg(all(unix, feature = "emulator"))]
    #[test]
    fn value_outside_utf8_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let value = |_: &str| Some(OsString::from_vec(vec![b'o', 0xff, b'n']));
        insta::assert_snapshot!(Settings::parse(value).unwrap_err(), @"GPUHEAP_DEVICE is set to 'o�n', which is not UTF-8; it takes cuda:0, emulated, emulated:16GiB or emulated:PROFILE with a profile of h200, rtx4090, t4, wsl2-rtx4060");
    }

    #[cfg(feature = "emulator")]
    #[test]
    fn documentation_lists_every_setting() {
        let page = include_str!("../../../docs/environment.md");
        let rows = page.lines().filter(|line| line.starts_with("| `GPUHEAP_"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let shown: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), row[2].to_owned())).collect();
        let row = |setting: &Setting| (format!("| `{}`", setting.variable), (setting.takes)());
        assert_eq!(shown, TABLE.iter().map(row).collect::<Vec<_>>());
        assert!(rows.iter().all(|row| row.len() == 5), "{rows:?}");
    }
}
