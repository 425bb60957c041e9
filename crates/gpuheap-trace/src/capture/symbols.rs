//! Finds names and lines of native frames in the files that the process had loaded.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;

use addr2line::Loader;
use gpuheap_text::printable;
use object::{Object as _, ReadCache};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::model::{StackInterner, is_runtime, next_number};

/// Maximum number of distinct calls in a small capture. The stacks of a program's allocations have
/// some thousand distinct calls.
const CALLS: usize = 1 << 16;
/// Number of bytes of a capture that allow one distinct call in addition to the first [`CALLS`]. A
/// recorder writes three bytes or more for a new call, but most bytes are events. A call takes 300
/// bytes of memory: without this bound, a hostile file of 4 MB took 1.24 GB.
const BYTES_PER_CALL: usize = 16;

/// File number of calls at addresses outside of all loaded files, such as generated code.
const NO_FILE: u32 = u32::MAX;

/// File with code. Several modules may be loaded from one file.
struct CodeFile {
    path: Box<str>,
    build_id: Box<str>,
    loader: Option<Option<Loader>>,
}

impl CodeFile {
    /// Returns the file's symbols. `None` if the file is missing, is not a regular file, or differs
    /// from the recorded build.
    fn loader(&mut self) -> Option<&Loader> {
        if self.loader.is_none() {
            let is_same = self.is_same_build();
            self.loader = Some(is_same.then(|| Loader::new(&*self.path).ok()).flatten());
        }
        self.loader.as_ref()?.as_ref()
    }

    fn is_same_build(&self) -> bool {
        // A pipe in place of the file would block the reader.
        let is_file = fs::metadata(&*self.path).is_ok_and(|data| data.is_file());
        let Some(file) = is_file.then(|| File::open(&*self.path).ok()).flatten() else {
            return false;
        };
        let cache = ReadCache::new(file);
        let Ok(object) = object::File::parse(&cache) else { return false };
        let found = object.build_id().ok().flatten().unwrap_or_default();
        let digits: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        digits == *self.build_id
    }

    /// Returns the file's name without its folder.
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Loaded code.
struct Module {
    end: u64,
    /// Address at which the file's address 0 is loaded.
    base: u64,
    file: u32,
}

/// Number of the file that contains a call, and the call's address in that file. A call outside of
/// all files has the number [`NO_FILE`] and an address of the process.
type Call = (u32, u64);

pub(super) struct ResolvedCall {
    pub(super) frames: Box<[u32]>,
    /// Name of the file that contains the call; `None` outside of files, and in runtime libraries.
    pub(super) module: Option<Arc<str>>,
}

/// Finds the names and lines of calls. Looks up each call once.
pub(super) struct Symbols {
    is_on: bool,
    files: Vec<CodeFile>,
    file_numbers: FxHashMap<(Box<str>, Box<str>), u32>,
    /// Modules loaded at the reader's place in the capture, by first address. They do not overlap.
    loaded: BTreeMap<u64, Module>,
    calls: Vec<Call>,
    call_numbers: FxHashMap<Call, u32>,
    most_calls: usize,
}

impl Symbols {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            files: Vec::new(),
            file_numbers: FxHashMap::default(),
            loaded: BTreeMap::new(),
            calls: Vec::new(),
            call_numbers: FxHashMap::default(),
            most_calls: CALLS,
        }
    }

    /// Sets the maximum number of distinct calls in proportion to `bytes`, the number of bytes of
    /// the capture that were read so far.
    pub(super) fn allow(&mut self, bytes: usize) {
        self.most_calls = CALLS + bytes / BYTES_PER_CALL;
    }

    /// Adds a loaded module. Removes modules that overlap it, because they must have been unloaded.
    pub(super) fn load(
        &mut self,
        path: &str,
        build_id: &str,
        addresses: std::ops::Range<u64>,
        base: u64,
    ) -> Result<(), Error> {
        if addresses.is_empty() {
            return Ok(());
        }
        let next = next_number(self.files.len())?;
        let file = *self.file_numbers.entry((path.into(), build_id.into())).or_insert(next);
        if file == next {
            self.files.push(CodeFile {
                path: path.into(),
                build_id: build_id.into(),
                loader: None,
            });
        }
        while let Some((&start, module)) = self.loaded.range(..addresses.end).next_back()
            && module.end > addresses.start
        {
            self.loaded.remove(&start);
        }
        self.loaded.insert(addresses.start, Module { end: addresses.end, base, file });
        Ok(())
    }

    /// Returns the number of the call with this return address, and adds the call if it is new.
    /// Looks the address up in the modules that are loaded now.
    pub(super) fn call(&mut self, return_address: u64) -> Result<u32, Error> {
        let address = return_address.saturating_sub(1);
        let below = self.loaded.range(..=address).next_back();
        let call = match below.filter(|(_, module)| address < module.end) {
            Some((_, module)) => (module.file, address.wrapping_sub(module.base)),
            None => (NO_FILE, address),
        };
        if let Some(&number) = self.call_numbers.get(&call) {
            return Ok(number);
        }
        if self.calls.len() == self.most_calls {
            return Err(Error::new(
                format!("has stacks of more than {} distinct calls", self.most_calls),
                "no recorder writes such a file; record again with gpuheap run",
            ));
        }
        let number = next_number(self.calls.len())?;
        self.calls.push(call);
        self.call_numbers.insert(call, number);
        Ok(number)
    }

    /// Returns each call with its frames, the innermost inlined function first.
    pub(super) fn resolve(
        mut self,
        stacks: &mut StackInterner,
    ) -> Result<Vec<ResolvedCall>, Error> {
        let calls = std::mem::take(&mut self.calls);
        self.call_numbers = FxHashMap::default();
        let module = |file: &CodeFile| {
            let name = file.name();
            (!is_runtime(name)).then(|| Arc::<str>::from(printable(name)))
        };
        let modules: Vec<_> = self.files.iter().map(module).collect();
        let mut resolved = Vec::new();
        let mut found = Vec::new();
        for (file, address) in calls {
            found.clear();
            match self.files.get_mut(file as usize) {
                Some(file) => add_frames(file, self.is_on, address, stacks, &mut found)?,
                None => {
                    let function = stacks.text(&format!("{address:#x}"))?;
                    let no_file = stacks.text("")?;
                    found.push(stacks.frame(function, no_file, 0)?);
                }
            }
            let module = modules.get(file as usize).cloned().flatten();
            resolved.push(ResolvedCall { frames: found.as_slice().into(), module });
        }
        Ok(resolved)
    }
}

fn add_frames(
    file: &mut CodeFile,
    is_on: bool,
    address: u64,
    stacks: &mut StackInterner,
    found: &mut Vec<u32>,
) -> Result<(), Error> {
    let runtime = is_runtime(file.name()).then(|| file.path.clone());
    if let Some(loader) = is_on.then(|| file.loader()).flatten() {
        look_up(loader, address, runtime.as_deref(), stacks, found)?;
    }
    if found.is_empty() {
        let function = stacks.text(&format!("{}+{address:#x}", file.name()))?;
        let path = stacks.text(&file.path)?;
        found.push(stacks.frame(function, path, 0)?);
    }
    Ok(())
}

/// Finds the name and line of an address, and the functions inlined at the address. For a runtime
/// library, `runtime` is the library's path, and only the symbol is looked up.
fn look_up(
    loader: &Loader,
    address: u64,
    runtime: Option<&str>,
    stacks: &mut StackInterner,
    found: &mut Vec<u32>,
) -> Result<(), Error> {
    let symbol = loader.find_symbol(address).unwrap_or_default();
    // Frames of runtime libraries, and of files with damaged debug information, have no line.
    if runtime.is_none()
        && let Ok(mut inlined) = loader.find_frames(address)
    {
        while let Ok(Some(frame)) = inlined.next() {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let name = name.unwrap_or_else(|| symbol.into());
            let location = frame.location.as_ref();
            let file = location.and_then(|location| location.file).unwrap_or_default();
            let line = location.and_then(|location| location.line).unwrap_or(0);
            if !name.is_empty() {
                let (name, file) = (stacks.text(&demangle(&name))?, stacks.text(file)?);
                found.push(stacks.frame(name, file, line)?);
            }
        }
    }
    if found.is_empty() && !symbol.is_empty() {
        let (name, file) =
            (stacks.text(&demangle(symbol))?, stacks.text(runtime.unwrap_or_default())?);
        found.push(stacks.frame(name, file, 0)?);
    }
    Ok(())
}

/// Demangles the name of a function. Does not change names of C functions, because the C++
/// demangler would read `f` as the type `float`.
fn demangle(name: &str) -> String {
    match name.starts_with("_Z") || name.starts_with("_R") {
        true => addr2line::demangle_auto(name.into(), None).into_owned(),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_c_stay() {
        for (name, shown) in [
            ("f", "f"),
            ("d", "d"),
            ("_Z4takei", "take(int)"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
        ] {
            assert_eq!(demangle(name), shown);
        }
    }
}
