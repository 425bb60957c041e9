//! Windows' own facts about the card. Linux under WSL2 lacks these facts.

use crate::facts::{Skipped, Source};

/// Card and host, as Windows' counters describe them. All sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    /// Memory of the host; `None` if Windows gave no answer.
    pub memory: Option<u64>,
    /// "Dedicated GPU memory" in use, on the adapter that uses the most such memory.
    pub dedicated: u64,
    /// "Shared GPU memory" in use, on the same adapter as `dedicated`. This is host memory.
    pub shared: u64,
    /// Windows processes that use the same adapter as `dedicated`. The process with the most
    /// dedicated memory is the first.
    pub processes: Vec<WindowsProcess>,
    /// Seconds since Windows reset the display driver; `None` if the last hour had no reset.
    pub reset_ago: Option<u64>,
    /// Names of the running distributions of WSL2.
    pub distributions: Vec<String>,
    /// Lines of `.wslconfig`.
    pub wslconfig: Vec<String>,
}

/// Windows process that uses the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsProcess {
    /// Name: `dwm`, `vmmemWSL`.
    pub name: String,
    /// Dedicated memory of the process.
    pub dedicated: u64,
    /// Shared memory of the process.
    pub shared: u64,
}

impl WindowsProcess {
    /// Returns `true` for the process that represents all of WSL2.
    pub fn is_wsl(&self) -> bool {
        self.name.starts_with("vmmem") || self.name == "vmwp"
    }
}

impl Windows {
    pub(super) fn read(source: &dyn Source) -> Result<Windows, Skipped> {
        source.windows().map(|text| Windows::parse(&text))
    }

    /// Returns the memory of WSL2's virtual machine: dedicated and shared.
    pub fn wsl_memory(&self) -> (u64, u64) {
        let own = self.processes.iter().filter(|process| process.is_wsl());
        own.fold((0, 0), |(dedicated, shared), process| {
            (dedicated.max(process.dedicated), shared.max(process.shared))
        })
    }

    /// Returns the dedicated memory of Windows' own programs.
    pub fn others_memory(&self) -> u64 {
        let others = self.processes.iter().filter(|process| !process.is_wsl());
        others.map(|process| process.dedicated).fold(0, u64::saturating_add)
    }

    /// Parses lines of fields separated by `|`. The first field is the kind of the line.
    fn parse(text: &str) -> Windows {
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.trim().split('|').collect()).collect();
        let number = |field: &str| field.trim().parse::<u64>().ok();
        let mut adapters: Vec<(&str, u64, u64)> = lines
            .iter()
            .filter_map(|fields| match fields.as_slice() {
                ["adapter", luid, dedicated, shared] => {
                    Some((*luid, number(dedicated)?, number(shared)?))
                }
                _ => None,
            })
            .collect();
        adapters.sort_by_key(|(_, dedicated, _)| std::cmp::Reverse(*dedicated));
        let (luid, dedicated, shared) = adapters.first().copied().unwrap_or_default();
        let mut windows = Windows { dedicated, shared, ..Windows::default() };
        for fields in &lines {
            match fields.as_slice() {
                ["memory", bytes] => windows.memory = number(bytes),
                ["reset", ago] => {
                    let last = windows.reset_ago.into_iter().chain(number(ago)).min();
                    windows.reset_ago = last;
                }
                ["distribution", name] => windows.distributions.push((*name).to_owned()),
                ["wslconfig", rest @ ..] => windows.wslconfig.push(rest.join("|")),
                ["process", of, name, dedicated, shared] if *of == luid => {
                    let (dedicated, shared) =
                        (number(dedicated).unwrap_or(0), number(shared).unwrap_or(0));
                    let name = (*name).to_owned();
                    windows.processes.push(WindowsProcess { name, dedicated, shared });
                }
                _ => {}
            }
        }
        windows.processes.sort_by_key(|process| std::cmp::Reverse(process.dedicated));
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapter_with_most_memory_is_chosen() {
        let windows = Windows::parse(
            "adapter|luid_1|100|900\r\nadapter|luid_2|5000|70\r\nprocess|luid_2|dwm|800|10\r\n\
             process|luid_2|vmmemWSL|4000|50\r\nprocess|luid_1|chrome|90|1\r\nreset|120\r\n\
             reset|40\r\nmemory|x\r\nadapter|half\r\n",
        );
        assert_eq!((windows.dedicated, windows.shared), (5000, 70));
        assert_eq!((windows.wsl_memory(), windows.others_memory()), ((4000, 50), 800));
        assert_eq!((windows.reset_ago, windows.memory), (Some(40), None));
    }
}
