//! PyTorch's version, and its allocator settings in the grammar of `PYTORCH_CUDA_ALLOC_CONF`.

use std::fmt;
use std::str::FromStr;

use super::Version;
use crate::models::SettingError;
use crate::text::quoted;

const MIB: u64 = 1 << 20;
/// Smallest value of `max_split_size_mb` and `max_non_split_rounding_mb` in PyTorch.
const LEAST_MB: u64 = 20;
/// Number of size ranges of `roundup_power2_divisions`: one for each power, 1 MiB to 32 GiB.
const INTERVALS: usize = 16;

/// All settings of PyTorch, and `version`, a setting of this crate.
const KNOWN: [&str; 19] = [
    "version",
    "backend",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "per_process_memory_fraction",
    "large_segment_size_mb",
    "throw_on_cudamalloc_oom",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "expandable_segments_reserve",
];

/// Settings of PyTorch's CUDA allocator.
///
/// Read from the value of `PYTORCH_CUDA_ALLOC_CONF`. Settings that do not affect the placement of
/// memory (pinned memory, locks) are accepted and ignored. One setting is not PyTorch's:
/// `version:2.6` selects the rules of that release.
///
/// ```
/// use gpuheap_replay::models::torch::Settings;
///
/// let settings: Settings = "expandable_segments:True,roundup_power2_divisions:[256:1,>:4]".parse()?;
/// assert!(settings.expandable_segments());
/// assert_eq!(settings.rounded(600 << 20), 640 << 20);
///
/// let error = "max_split_mb:64".parse::<Settings>().unwrap_err();
/// assert!(error.to_string().contains("max_split_size_mb"));
/// # Ok::<(), gpuheap_replay::models::SettingError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub(super) version: Version,
    pub(super) expandable_segments: bool,
    /// Largest block that may be split, in bytes; `u64::MAX` for no limit.
    pub(super) max_split_size: u64,
    pub(super) max_non_split_rounding: u64,
    pub(super) garbage_collection_threshold: f64,
    pub(super) divisions: [u64; INTERVALS],
    pub(super) fraction: Option<f64>,
    pub(super) large_segment: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: Version::default(),
            expandable_segments: false,
            max_split_size: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            garbage_collection_threshold: 0.0,
            divisions: [0; INTERVALS],
            fraction: None,
            large_segment: 20 * MIB,
        }
    }
}

impl Settings {
    /// Returns the release of PyTorch whose rules apply.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Sets the release of PyTorch whose rules apply.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Returns the text for `PYTORCH_CUDA_ALLOC_CONF`, with the settings that differ from PyTorch's
    /// defaults. Leaves out `version`, because only gpuheap has that setting.
    pub fn to_alloc_conf(&self) -> String {
        Self { version: Version::default(), ..self.clone() }.to_string()
    }

    /// Returns `true` if segments grow in place (`expandable_segments`).
    pub fn expandable_segments(&self) -> bool {
        self.expandable_segments
    }

    /// Returns the memory fraction that PyTorch may reserve; `None` if no fraction is set.
    pub fn memory_fraction(&self) -> Option<f64> {
        self.fraction
    }

    /// Returns `true` if garbage collection is on. Above a threshold, PyTorch then gives unused
    /// segments back.
    pub fn collects_garbage(&self) -> bool {
        self.garbage_collection_threshold > 0.0
    }

    /// Limits PyTorch to a part of the device, as `torch.cuda.set_per_process_memory_fraction`
    /// does.
    ///
    /// # Errors
    /// Returns an error unless `fraction` is above 0 and at most 1.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), SettingError> {
        if fraction > 0.0 && fraction <= 1.0 {
            self.fraction = Some(fraction);
            Ok(())
        } else {
            Err(SettingError::new(
                format!("per_process_memory_fraction is {fraction}"),
                "give a part of the device above 0 and at most 1, for example 0.5",
            ))
        }
    }

    /// Returns the settings with a memory fraction that limits nothing.
    pub(crate) fn without_limit(&self) -> Self {
        Self { fraction: self.fraction.map(|_| 1.0), ..self.clone() }
    }

    /// Sets the largest block that may be split; `None` for no limit.
    pub fn set_max_split_size(&mut self, bytes: Option<u64>) {
        self.max_split_size = bytes.unwrap_or(u64::MAX);
    }

    /// Sets whether segments grow in place.
    pub fn set_expandable_segments(&mut self, expandable: bool) {
        self.expandable_segments = expandable;
    }

    /// Sets the fraction of the allowed memory above which unused segments are given back. If it is
    /// 0, they never are.
    ///
    /// # Errors
    /// Returns an error unless `threshold` is at least 0 and below 1.
    pub fn set_garbage_collection_threshold(&mut self, threshold: f64) -> Result<(), SettingError> {
        if (0.0..1.0).contains(&threshold) {
            self.garbage_collection_threshold = threshold;
            Ok(())
        } else {
            Err(outside_of_memory(threshold))
        }
    }

    /// Sets the number of parts into which rounding divides sizes from `from_mib` MiB up to the
    /// next power of two. Zero turns this rounding off.
    ///
    /// # Errors
    /// Returns an error if `from_mib` or `divisions` is not a power of two.
    pub fn set_divisions(&mut self, from_mib: u64, divisions: u64) -> Result<(), SettingError> {
        check_divisions(divisions)?;
        self.divisions[interval_of_power(from_mib)?] = divisions;
        Ok(())
    }

    /// Returns the size of the smallest block that serves a request for `bytes`.
    pub fn rounded(&self, bytes: u64) -> u64 {
        const LEAST: u64 = super::block::MIN_BLOCK;
        if bytes < LEAST {
            return LEAST;
        }
        let divisions = self.divisions[interval(bytes)];
        if divisions > 1 && bytes > LEAST.saturating_mul(divisions) {
            let floor = 1_u64 << bytes.ilog2();
            let step = floor >> divisions.ilog2();
            match step {
                _ if floor == bytes => bytes,
                0 => floor.saturating_mul(2),
                _ => bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX),
            }
        } else {
            bytes.checked_next_multiple_of(LEAST).unwrap_or(u64::MAX)
        }
    }

    /// Returns `true` if the settings are equal except for the memory fraction and the version.
    pub(crate) fn is_but_for_limit(&self, other: &Self) -> bool {
        *self == Self { fraction: self.fraction, version: self.version, ..other.clone() }
    }

    fn set(&mut self, name: &str, value: &[&str]) -> Result<(), SettingError> {
        match name {
            "version" => self.version = value.concat().parse()?,
            "expandable_segments" => self.expandable_segments = truth(name, value)?,
            "max_split_size_mb" => self.max_split_size = megabytes(name, value)?,
            "max_non_split_rounding_mb" => self.max_non_split_rounding = megabytes(name, value)?,
            "large_segment_size_mb" => self.large_segment = megabytes(name, value)?,
            "garbage_collection_threshold" => match single(name, value, "0.6")? {
                0.0 => return Err(outside_of_memory(0.0)),
                threshold => self.set_garbage_collection_threshold(threshold)?,
            },
            "per_process_memory_fraction" => {
                self.set_memory_fraction(single(name, value, "0.6")?)?;
            }
            "roundup_power2_divisions" => self.set_all_divisions(name, value)?,
            "backend" => match value {
                ["native"] => {}
                ["cudaMallocAsync"] => {
                    return Err(SettingError::new(
                        "backend:cudaMallocAsync is the driver's own pool, not PyTorch's",
                        "leave the backend out, or replay through the model of the driver's pool",
                    ));
                }
                _ => return Err(malformed(name, value, "native")),
            },
            // These settings do not affect the placement of memory.
            _ => {
                if value.is_empty() {
                    return Err(malformed(name, value, "True"));
                }
            }
        }
        Ok(())
    }

    /// Refuses a setting that the given version lacks. If no version is given, selects the first
    /// version that has the setting.
    fn check_version(&mut self, sets_segments: bool, is_given: bool) -> Result<(), SettingError> {
        let first = Version::LARGE_SEGMENTS;
        if !sets_segments || self.version >= first {
            return Ok(());
        }
        if is_given {
            return Err(SettingError::new(
                format!("PyTorch {} has no setting large_segment_size_mb", self.version),
                format!("leave it out, or give version:{first}, which has it"),
            ));
        }
        self.version = first;
        Ok(())
    }

    /// Reads `roundup_power2_divisions`: one number for all sizes, or a list like
    /// `[256:1,512:2,>:4]` of powers of two in MiB with their divisions. The list's first number
    /// also applies to all smaller powers. The number after `>` applies to all larger powers.
    fn set_all_divisions(&mut self, name: &str, value: &[&str]) -> Result<(), SettingError> {
        let example = "4 or [256:1,512:2,>:4]";
        let whole = |text: &str| text.parse().map_err(|_| malformed(name, value, example));
        if let [all] = value {
            let all: u64 = whole(all)?;
            if !all.is_power_of_two() {
                return Err(not_a_power("divisions", all));
            }
            self.divisions = [all; INTERVALS];
            return Ok(());
        }
        let ["[", inner @ .., "]"] = value else {
            return Err(malformed(name, value, example));
        };
        let mut last = None;
        for pair in inner.split(|token| *token == ",") {
            let [power, ":", divisions] = pair else {
                return Err(malformed(name, value, example));
            };
            let divisions = whole(divisions)?;
            check_divisions(divisions)?;
            if *power == ">" {
                self.divisions[last.map_or(0, |last| last + 1)..].fill(divisions);
                continue;
            }
            let index = interval_of_power(whole(power)?)?;
            if last.is_none() {
                self.divisions[..index].fill(divisions);
            }
            self.divisions[index] = divisions;
            last = Some(index);
        }
        Ok(())
    }
}

fn interval(bytes: u64) -> usize {
    let power = bytes.checked_ilog2().unwrap_or(0).saturating_sub(MIB.ilog2());
    (power as usize).min(INTERVALS - 1)
}

fn interval_of_power(mib: u64) -> Result<usize, SettingError> {
    if !mib.is_power_of_two() {
        return Err(not_a_power("sizes in MiB", mib));
    }
    Ok((mib.ilog2() as usize).min(INTERVALS - 1))
}

fn check_divisions(divisions: u64) -> Result<(), SettingError> {
    if divisions == 0 || divisions.is_power_of_two() {
        Ok(())
    } else {
        Err(not_a_power("divisions", divisions))
    }
}

fn outside_of_memory(threshold: f64) -> SettingError {
    SettingError::new(
        format!("garbage_collection_threshold is {threshold}"),
        "give a part of the allowed memory between 0 and 1, for example 0.8",
    )
}

fn not_a_power(what: &str, number: u64) -> SettingError {
    SettingError::new(
        format!("roundup_power2_divisions has {number} among its {what}"),
        "give powers of two, for example roundup_power2_divisions:[256:1,512:2,>:4]",
    )
}

fn malformed(name: &str, value: &[&str], example: &str) -> SettingError {
    let given = value.concat();
    let what = if given.is_empty() {
        format!("{name} has no value")
    } else {
        format!("{name} has the value {}", quoted(&given))
    };
    SettingError::new(what, format!("write it as PyTorch does, for example {name}:{example}"))
}

fn truth(name: &str, value: &[&str]) -> Result<bool, SettingError> {
    match value {
        ["True"] => Ok(true),
        ["False"] => Ok(false),
        _ => Err(malformed(name, value, "True")),
    }
}

/// Reads a value that consists of one word.
fn single<T: FromStr>(name: &str, value: &[&str], example: &str) -> Result<T, SettingError> {
    let read = match value {
        [one] => one.parse().ok(),
        _ => None,
    };
    read.ok_or_else(|| malformed(name, value, example))
}

fn megabytes(name: &str, value: &[&str]) -> Result<u64, SettingError> {
    match single::<u64>(name, value, "64")? {
        mib if mib >= LEAST_MB => Ok(mib.min(u64::MAX / MIB) * MIB),
        mib => Err(SettingError::new(
            format!("{name} is {mib}"),
            format!("PyTorch takes {LEAST_MB} or more, for example {name}:64"),
        )),
    }
}

impl FromStr for Settings {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let mut given = Vec::new();
        let tokens = tokens(text);
        let mut rest = &tokens[..];
        while let [name, after @ ..] = rest {
            let name = *name;
            if !KNOWN.contains(&name) {
                let what = "PyTorch's allocator has no setting";
                return Err(SettingError::unknown(what, name, &KNOWN));
            }
            let [":", after @ ..] = after else {
                return Err(malformed(name, &[], "True"));
            };
            let end = end_of_value(after);
            settings.set(name, &after[..end])?;
            given.push(name);
            rest = match &after[end..] {
                [",", more @ ..] => more,
                more => more,
            };
        }
        settings
            .check_version(given.contains(&"large_segment_size_mb"), given.contains(&"version"))?;
        Ok(settings)
    }
}

/// Splits a text into words and the signs `,`, `:`, `[`, `]`. Drops blanks.
fn tokens(text: &str) -> Vec<&str> {
    let is_sign = |c: char| matches!(c, ',' | ':' | '[' | ']');
    let mut tokens = Vec::new();
    for part in text.split_inclusive(is_sign) {
        let (word, sign) = match part.char_indices().next_back() {
            Some((at, last)) if is_sign(last) => part.split_at(at),
            _ => (part, ""),
        };
        tokens.extend([word.trim(), sign].into_iter().filter(|token| !token.is_empty()));
    }
    tokens
}

/// Returns the end of a value: the first comma outside of a list.
fn end_of_value(tokens: &[&str]) -> usize {
    let mut in_list = false;
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "[" => in_list = true,
            "]" => in_list = false,
            "," if !in_list => return index,
            _ => {}
        }
    }
    tokens.len()
}

impl fmt::Display for Settings {
    /// Writes the settings that differ from the defaults, in PyTorch's grammar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut parts = Vec::new();
        let mut add = |name: &str, value: &dyn fmt::Display, is_default: bool| {
            if !is_default {
                parts.push(format!("{name}:{value}"));
            }
        };
        let Self { version, max_split_size: split, max_non_split_rounding: rounding, .. } = self;
        let (segment, threshold) = (self.large_segment, self.garbage_collection_threshold);
        add("version", version, *version == default.version);
        add("expandable_segments", &"True", !self.expandable_segments);
        add("max_split_size_mb", &(split / MIB), *split == default.max_split_size);
        let is_default = *rounding == default.max_non_split_rounding;
        add("max_non_split_rounding_mb", &(rounding / MIB), is_default);
        add("large_segment_size_mb", &(segment / MIB), segment == default.large_segment);
        add("garbage_collection_threshold", &threshold, threshold == 0.0);
        if self.divisions != default.divisions {
            let first = self.divisions[0];
            if first != 0 && self.divisions.iter().all(|&divisions| divisions == first) {
                parts.push(format!("roundup_power2_divisions:{first}"));
            } else {
                let pairs = self.divisions.iter().enumerate();
                let pairs = pairs.map(|(power, divisions)| format!("{}:{divisions}", 1 << power));
                let pairs: Vec<_> = pairs.collect();
                parts.push(format!("roundup_power2_divisions:[{}]", pairs.join(",")));
            }
        }
        if let Some(fraction) = self.fraction {
            parts.push(format!("per_process_memory_fraction:{fraction}"));
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_text_round_trips() {
        let text = "expandable_segments:True,max_split_size_mb:64,\
                    roundup_power2_divisions:[256:1,512:2,>:4],\
                    garbage_collection_threshold:0.6,per_process_memory_fraction:0.5";
        let settings: Settings = text.parse().unwrap();
        assert!(settings.expandable_segments);
        assert_eq!(settings.max_split_size, 64 * MIB);
        assert_eq!(settings.garbage_collection_threshold, 0.6);
        assert_eq!(settings.fraction, Some(0.5));
        assert_eq!(settings.divisions[..9], [1; 9]);
        assert_eq!(settings.divisions[9], 2);
        assert_eq!(settings.divisions[10..], [4; 6]);
        let again: Settings = settings.to_string().parse().unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn unknown_setting_names_the_nearest() {
        for (wrong, right) in [
            ("expandable_segment:True", "expandable_segments"),
            ("max_split_size:64", "max_split_size_mb"),
            ("garbage_collect_threshold:0.5", "garbage_collection_threshold"),
            ("memory_fraction:0.5", "per_process_memory_fraction"),
        ] {
            let error = wrong.parse::<Settings>().unwrap_err().to_string();
            assert!(error.contains(right), "{error}");
        }
    }

    #[test]
    fn fraction_above_one_is_refused() {
        for wrong in ["0", "7", "-1", "nan", "inf", "", "1.0001", "half"] {
            let text = format!("per_process_memory_fraction:{wrong}");
            let error = text.parse::<Settings>().unwrap_err().to_string();
            assert!(error.contains("per_process_memory_fraction"), "{error}");
        }
        assert!("per_process_memory_fraction:1".parse::<Settings>().is_ok());
    }

    #[test]
    fn alloc_conf_leaves_out_version() {
        let settings: Settings = "version:2.6,expandable_segments:True".parse().unwrap();
        assert_eq!(settings.to_string(), "version:2.6,expandable_segments:True");
        assert_eq!(settings.to_alloc_conf(), "expandable_segments:True");
        let version = |text: &str| text.parse::<Settings>().unwrap().version().to_string();
        assert_eq!(version("version:2.14.1"), "2.14");
        // If `version` is missing, the first PyTorch release that has the setting is assumed.
        assert_eq!(version("large_segment_size_mb:40"), "2.13");
        assert_eq!(version("large_segment_size_mb:40,version:2.15"), "2.15");
        let error = "version:2.12,large_segment_size_mb:40".parse::<Settings>().unwrap_err();
        assert!(error.to_string().contains("version:2.13"), "{error}");
    }

    #[test]
    fn malformed_values_are_refused() {
        for wrong in [
            "version:2",
            "version:1.13",
            "version:2.5",
            "version:2.16",
            "version:",
            "expandable_segments",
            "expandable_segments:",
            "expandable_segments:true",
            "max_split_size_mb:19",
            "max_split_size_mb:-1",
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:0",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[256:3]",
            "roundup_power2_divisions:[100:4]",
            "roundup_power2_divisions:[256:1",
            "roundup_power2_divisions:[]",
            "backend:cudaMallocAsync",
            "backend:other",
            ",",
            ":",
            "[",
        ] {
            assert!(wrong.parse::<Settings>().is_err(), "{wrong}");
        }
        assert_eq!("".parse::<Settings>().unwrap(), Settings::default());
        assert!("max_split_size_mb:64,".parse::<Settings>().is_ok());
    }

    #[test]
    fn requests_are_rounded_like_pytorch() {
        let default = Settings::default();
        assert_eq!(default.rounded(1), 512);
        assert_eq!(default.rounded(513), 1024);
        assert_eq!(default.rounded(1 << 20), 1 << 20);
        let quarters: Settings = "roundup_power2_divisions:4".parse().unwrap();
        assert_eq!(quarters.rounded(1200), 1536);
        assert_eq!(quarters.rounded(1200 << 20), 1280 << 20);
        assert_eq!(quarters.rounded(1024 << 20), 1024 << 20);
        // Up to 2048 bytes (512 times 4 divisions), requests are only rounded to 512 bytes.
        assert_eq!(quarters.rounded(2048), 2048);
        assert_eq!(quarters.rounded(2049), 2560);
        assert_eq!(quarters.rounded(u64::MAX), u64::MAX);
    }
}
