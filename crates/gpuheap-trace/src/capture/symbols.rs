//! Names and lines of native frames, from the files that the process had loaded.

use std::fs::{self, File};
use std::path::PathBuf;

use addr2line::Loader;
use object::{Object as _, ReadCache};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::model::{StackInterner, is_runtime};

/// Loaded file with code.
pub(super) struct Module {
    path: PathBuf,
    /// File name, for frames without a symbol.
    name: String,
    start: u64,
    end: u64,
    base: u64,
    build_id: String,
    loader: Option<Option<Loader>>,
}

impl Module {
    pub(super) fn new(path: &str, build_id: &str, start: u64, end: u64, base: u64) -> Self {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let build_id = build_id.to_owned();
        Self { path: path.into(), name, start, end, base, build_id, loader: None }
    }

    /// Returns the file's symbols. `None` if the file is gone, is no regular file, or is another
    /// build than the recorded one.
    fn loader(&mut self) -> Option<&Loader> {
        if self.loader.is_none() {
            let is_same = self.is_same_build();
            self.loader = Some(is_same.then(|| Loader::new(&self.path).ok()).flatten());
        }
        self.loader.as_ref()?.as_ref()
    }

    fn is_same_build(&self) -> bool {
        // A pipe in place of the file would block the reader.
        let is_file = fs::metadata(&self.path).is_ok_and(|data| data.is_file());
        let Some(file) = is_file.then(|| File::open(&self.path).ok()).flatten() else {
            return false;
        };
        let cache = ReadCache::new(file);
        let Ok(object) = object::File::parse(&cache) else { return false };
        let found = object.build_id().ok().flatten().unwrap_or_default();
        let digits: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        digits == self.build_id
    }
}

/// Finder of names and lines. Each address of a module is looked up once.
pub(super) struct Symbols {
    is_on: bool,
    modules: Vec<Module>,
    /// Frames by address and by index of the module.
    known: FxHashMap<(u64, Option<usize>), Vec<u32>>,
}

impl Symbols {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, modules: Vec::new(), known: FxHashMap::default() }
    }

    pub(super) fn add(&mut self, module: Module) {
        self.modules.push(module);
    }

    /// Returns the number of modules.
    pub(super) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Appends the frames of a return address, the innermost inlined function first. Modules after
    /// the first `loaded` ones were not loaded yet.
    pub(super) fn append(
        &mut self,
        address: u64,
        loaded: usize,
        stacks: &mut StackInterner,
        frames: &mut Vec<u32>,
    ) -> Result<(), Error> {
        // The call is before the return address.
        let call = address.saturating_sub(1);
        // A library that was loaded later may have taken the addresses of one that was unloaded.
        let before = self.modules.get(..loaded).unwrap_or(&self.modules);
        let index = before.iter().rposition(|module| (module.start..module.end).contains(&call));
        if let Some(known) = self.known.get(&(address, index)) {
            frames.extend_from_slice(known);
            return Ok(());
        }
        let mut found = Vec::new();
        match index.and_then(|index| self.modules.get_mut(index)) {
            Some(module) => {
                let relative = call.wrapping_sub(module.base);
                let path = module.path.to_string_lossy().into_owned();
                let runtime = is_runtime(&module.name).then_some(path);
                if let Some(loader) = self.is_on.then(|| module.loader()).flatten() {
                    resolve(loader, relative, runtime.as_deref(), stacks, &mut found)?;
                }
                if found.is_empty() {
                    let function = format!("{}+{relative:#x}", module.name);
                    let function = stacks.text(&function)?;
                    let file = stacks.text(&module.path.to_string_lossy())?;
                    found.push(stacks.frame(function, file, 0)?);
                }
            }
            None => {
                let (function, file) = (stacks.text(&format!("{call:#x}"))?, stacks.text("")?);
                found.push(stacks.frame(function, file, 0)?);
            }
        }
        frames.extend_from_slice(&found);
        self.known.insert((address, index), found);
        Ok(())
    }
}

/// Finds the name and line of an address, and the functions inlined there. An address in `runtime`,
/// the path of a library between the program and the driver, gets its symbol and that path.
fn resolve(
    loader: &Loader,
    address: u64,
    runtime: Option<&str>,
    stacks: &mut StackInterner,
    found: &mut Vec<u32>,
) -> Result<(), Error> {
    let symbol = loader.find_symbol(address).unwrap_or_default();
    // A damaged file has no lines. Its symbol is used alone.
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

/// Returns the name of a function as its language writes it.
fn demangle(name: &str) -> String {
    addr2line::demangle_auto(name.into(), None).into_owned()
}
