//! Parses the pools that a user names: gpuheap's own pools, or models of other allocators.

use std::fmt;

use gpuheap::PoolKind;

use crate::models::torch::Settings;
use crate::models::{NAMES, SettingError, build, name_of};

/// Pool through which a trace is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pool {
    /// One of gpuheap's own pools. The library itself runs it, not a model.
    Own(PoolKind),
    /// A model of another allocator with its settings, as [`build`] takes them.
    ///
    /// `torch` without settings stands for the settings that the snapshot recorded.
    Model(String),
}

impl Pool {
    /// Reads the name of one of gpuheap's pools, or of another allocator's model with settings.
    ///
    /// # Errors
    /// Returns an error if no such pool or setting exists. The error lists the pools or settings
    /// that exist.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        if let Ok(own) = PoolKind::parse(text) {
            return Ok(Self::Own(own));
        }
        if let Some((first, second)) = two_pools(text) {
            return Err(SettingError::new(
                format!("\"{text}\" names two pools"),
                format!("give --pool twice: --pool {first} --pool {second}"),
            ));
        }
        if let Some(settings) = torch_settings_alone(text) {
            return Err(SettingError::new(
                format!("'{text}' is a setting of PyTorch's and not a pool"),
                format!("write torch:{settings}"),
            ));
        }
        let base = text.split(':').next().unwrap_or_default();
        if !NAMES.iter().any(|name| name.split(':').next() == Some(base)) {
            let own: Vec<_> = PoolKind::ALL.iter().map(|kind| kind.name()).collect();
            return Err(SettingError::new(
                format!("'{text}' is not a pool"),
                format!("the pools are {}, {}", own.join(", "), NAMES.join(", ")),
            ));
        }
        // The check here accepts any size. Sizes are compared with the device later, once the
        // device is known.
        const ANY_DEVICE: u64 = 1 << 52;
        build(text, ANY_DEVICE)?;
        Ok(Self::Model(text.to_owned()))
    }

    /// Returns the name of the allocator without settings: `stitched`, `torch`, `rmm:pool`.
    pub fn base(&self) -> &str {
        match self {
            Self::Own(kind) => kind.name(),
            Self::Model(text) => name_of(text).unwrap_or(text),
        }
    }

    /// Returns `true` if the figures come from a model of a driver whose source is closed.
    pub fn is_closed_driver(&self, is_emulated: bool) -> bool {
        match self {
            Self::Own(kind) => is_emulated && *kind == PoolKind::Driver,
            Self::Model(_) => matches!(self.base(), "cuda" | "cuda:async" | "rmm:async"),
        }
    }

    /// Returns `true` if the pool keeps freed memory, so that an allocation rarely calls the
    /// driver.
    pub fn is_caching(&self) -> bool {
        !matches!(self.base(), "none" | "cuda")
    }
}

/// Returns the settings of PyTorch's allocator if `text` contains them without a pool's name, as in
/// the environment variable. Returns `None` for any other text.
fn torch_settings_alone(text: &str) -> Option<&str> {
    let variables = ["PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="];
    let settings = variables.iter().find_map(|variable| text.strip_prefix(variable));
    let settings = settings.unwrap_or(text).trim_matches(['"', '\'']);
    // A text without a colon is the name of a pool.
    let is_read = settings.contains(':') && settings.parse::<Settings>().is_ok();
    is_read.then_some(settings)
}

/// Splits a text at the first comma between two pools.
fn two_pools(text: &str) -> Option<(&str, &str)> {
    let is_name =
        |part: &str| PoolKind::parse(part.trim()).is_ok() || name_of(part.trim()).is_some();
    let commas = text.match_indices(',').map(|(at, _)| at);
    commas
        .map(|at| (text[..at].trim(), text[at + 1..].trim()))
        .find(|(first, second)| is_name(first) && is_name(second.split(',').next().unwrap_or("")))
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Own(kind) => kind.name(),
            Self::Model(text) => text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pools_in_one_option_refused() {
        for (text, advice) in [
            ("split,stitched", "--pool split --pool stitched"),
            ("torch,split", "--pool torch --pool split"),
            (
                "torch:expandable_segments:True,rmm:pool",
                "--pool torch:expandable_segments:True --pool rmm:pool",
            ),
        ] {
            let error = Pool::parse(text).unwrap_err();
            assert!(error.advice().ends_with(advice), "{error}");
        }
        let settings = "torch:expandable_segments:True,max_split_size_mb:64";
        assert_eq!(Pool::parse(settings), Ok(Pool::Model(settings.to_owned())));
    }

    #[test]
    fn settings_without_pool_name_the_fix() {
        let settings = "expandable_segments:True";
        for text in [settings.to_owned(), format!("PYTORCH_CUDA_ALLOC_CONF={settings}")] {
            let error = Pool::parse(&text).unwrap_err();
            assert_eq!(error.advice(), format!("write torch:{settings}"));
        }
    }

    #[test]
    fn only_a_near_setting_is_suggested() {
        let near = Pool::parse("torch:expandable_segment:True").unwrap_err();
        assert!(near.advice().contains("nearest"), "{near}");
        let far = Pool::parse("torch:foo:1").unwrap_err();
        assert!(!far.advice().contains("nearest"), "{far}");
    }

    #[test]
    fn base_name_leaves_out_settings() {
        for (text, base) in [
            ("stitched", "stitched"),
            ("torch:expandable_segments:True", "torch"),
            ("rmm:pool:initial_pool_size:1GiB", "rmm:pool"),
            ("cuda", "cuda"),
        ] {
            assert_eq!(Pool::parse(text).map(|pool| pool.base().to_owned()), Ok(base.to_owned()));
        }
        assert!(Pool::parse("best").unwrap_err().to_string().contains("stitched"));
    }
}
