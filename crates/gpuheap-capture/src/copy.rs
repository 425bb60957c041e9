//! Kinds of copies.

/// Declares an enumeration whose values are numbers in a capture, in their order.
macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[non_exhaustive]
            pub enum $name {
                $($(#[$value_doc])* $value,)*
            }

            impl $name {
                /// All values, in the order of their numbers.
                pub const ALL: &[$name] = &[$($name::$value),*];

                /// Returns the name in texts and JSON.
                pub fn as_str(self) -> &'static str {
                    match self {
                        $($name::$value => $text,)*
                    }
                }
            }
        )*
    };
}

numbered! {
    /// Direction of a copy.
    CopyDirection {
        /// From the host to a device: an upload.
        ToDevice = "to device",
        /// From a device to the host: a download.
        ToHost = "to host",
        /// Within a device, or between devices.
        InDevice = "in device",
    }

    /// Memory on the host's side of a copy.
    CopyMemory {
        /// No memory of the host.
        None = "none",
        /// Pageable memory: the driver copies it through pinned memory of its own.
        Pageable = "pageable",
        /// Pinned memory that the driver allocated.
        Pinned = "pinned",
        /// Memory that the program registered.
        Registered = "registered",
        /// Managed memory.
        Managed = "managed",
    }
}
