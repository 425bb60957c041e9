//! Values that options of several commands have.

use gpuheap::Size;
use gpuheap::emu::Profile;

/// Granule of devices, bytes.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Bytes, with the text that the user typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypedSize {
    pub(crate) bytes: u64,
    pub(crate) typed: String,
}

/// Parses a size that is not a share, because it sets the memory that shares refer to.
pub(crate) fn bytes(text: &str) -> Result<TypedSize, String> {
    missing(text)?;
    let reason = match Size::parse(text) {
        Ok(Size::Bytes(bytes)) if bytes >= GRANULE => {
            return Ok(TypedSize { bytes, typed: text.trim().to_owned() });
        }
        Ok(Size::Bytes(_)) => "it is less than the 2 MiB that a device hands out at a time",
        Ok(_) => "it is a share",
        Err(error) => error.reason(),
    };
    Err(format!("'{text}' is not a size: {reason}; write bytes (10000) or a unit (100M, 1.5GiB)"))
}

/// Refuses another option as a value. Values may start with a hyphen, so that `-1` gets an error of
/// its own.
pub(crate) fn missing(text: &str) -> Result<(), String> {
    if text.starts_with("--") {
        return Err(format!("the value is missing before '{text}'"));
    }
    Ok(())
}

/// Parses the name of an emulated device.
pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Profile::named(text).ok_or_else(|| {
        format!("'{text}' is not a profile; the profiles are {}", Profile::NAMES.join(", "))
    })
}
