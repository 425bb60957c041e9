//! Launches of gpuheap's kernels. A launch of any other kernel is work that does nothing.

use super::prelude::*;
use crate::kernels::{BLOCK, Kernel, Memory};
use crate::state::host;
use crate::state::module::Code;
use crate::state::space::{Kind, is_device_address};
use crate::state::stream::{KernelWork, Work};

/// Maximum number of threads in a block.
const BLOCK_THREADS: u32 = 1024;
/// Keys in the list of a launch's extra options. Any other key ends the list.
const LAUNCH_PARAM_BUFFER_POINTER: u64 = 1;
const LAUNCH_PARAM_BUFFER_SIZE: u64 = 2;

impl Call<'_> {
    pub(crate) fn cuLaunchKernel(
        &mut self,
        (
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            _shared_bytes,
            stream,
            parameters,
            extra,
        ): args::cuLaunchKernel,
    ) -> Outcome {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        self.launch(function, stream, &Launch { grid, block, parameters, extra })
    }

    /// Launches a kernel. Attributes such as the size of clusters have no effect.
    pub(crate) fn cuLaunchKernelEx(
        &mut self,
        (launch, function, parameters, extra): args::cuLaunchKernelEx,
    ) -> Outcome {
        let asked = launch.get()?;
        let grid = [asked.gridDimX, asked.gridDimY, asked.gridDimZ];
        let block = [asked.blockDimX, asked.blockDimY, asked.blockDimZ];
        self.launch(function, asked.hStream, &Launch { grid, block, parameters, extra })
    }

    pub(crate) fn cuLaunchCooperativeKernel(
        &mut self,
        (
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            _shared_bytes,
            stream,
            parameters,
        ): args::cuLaunchCooperativeKernel,
    ) -> Outcome {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        self.launch(function, stream, &Launch { grid, block, parameters, extra: Out::NULL })
    }

    fn launch(&mut self, function: CUfunction, stream: CUstream, launch: &Launch) -> Outcome {
        let stream = self.stream(stream)?;
        let context = self.context_of(stream);
        let found = self.state.functions.get(function.0);
        let found = found.filter(|found| found.context.is_none_or(|own| own == context));
        let found = found.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        match found.code {
            Code::Own(kernel) => self.launch_own(kernel, stream, launch),
            Code::Foreign => {
                let parameters = found.parameters.clone();
                self.launch_nothing(stream, launch, &parameters)
            }
        }
    }

    fn launch_own(&mut self, kernel: Kernel, stream: u32, launch: &Launch) -> Outcome {
        fail_if(!launch.extra.is_null(), CUresult::ERROR_NOT_SUPPORTED)?;
        // Every kernel of gpuheap requires blocks of `BLOCK` threads. Further dimensions of the
        // grid would repeat all work.
        let [grid_x, grid_y, grid_z] = launch.grid;
        fail_if(
            grid_x == 0 || [grid_y, grid_z] != [1, 1] || launch.block != [BLOCK, 1, 1],
            INVALID_VALUE,
        )?;
        // SAFETY: each of gpuheap's kernels has one parameter, an array of words.
        let parameter = unsafe { launch.parameters.follow()?.cast::<u64>() };
        let words: Vec<u64> =
            (0..kernel.words()).map(|i| parameter.at(i).get()).collect::<Outcome<_>>()?;
        self.begin(stream);
        let error = self.note_kernel(stream, kernel, &words).err();
        let work = KernelWork { kernel, words, error };
        self.enqueue(stream, Work::Kernel(Box::new(work)), &[]);
        self.alive(self.context_of(stream))
    }

    /// Enqueues a kernel that is not run. `parameters` contains the sizes of the kernel's
    /// parameters, if known.
    fn launch_nothing(&mut self, stream: u32, launch: &Launch, parameters: &[u32]) -> Outcome {
        let threads = launch.block.iter().try_fold(1_u32, |all, threads| all.checked_mul(*threads));
        let fits = threads.is_some_and(|threads| (1..=BLOCK_THREADS).contains(&threads));
        fail_if(launch.grid.contains(&0) || !fits, INVALID_VALUE)?;
        let addresses = launch.device_addresses(parameters)?;
        self.begin(stream);
        self.state.counts.launches_dropped += u64::from(!self.state.captures.is_recording(stream));
        self.enqueue(stream, Work::Foreign(addresses), &[]);
        self.alive(self.context_of(stream))
    }

    pub(super) fn perform_kernel(&mut self, stream: u32, work: &KernelWork) -> Outcome {
        match work.error {
            Some(code) => Err(code),
            None => work.kernel.run(&work.words, &mut Seen { call: self, stream }),
        }
    }

    /// Returns whether a kernel on a stream may use the allocation at an address. Mappings have
    /// their own access rights.
    pub(crate) fn kernel_reaches(&self, stream: u32, address: u64) -> bool {
        let found = self.state.space.find(address);
        found.is_some_and(|(_, found)| {
            found.kind == Kind::Reserved || self.reaches(self.context_of(stream), address)
        })
    }
}

/// Arguments of a launch.
struct Launch {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    parameters: Out<*mut c_void>,
    extra: Out<*mut c_void>,
}

impl Launch {
    /// Returns the device addresses in the arguments, at any offset.
    fn device_addresses(&self, parameters: &[u32]) -> Outcome<Box<[u64]>> {
        let mut found = Vec::new();
        let mut add = |argument: Out<c_void>, bytes: usize| {
            for word in 0..bytes / 8 {
                // SAFETY: the argument has `bytes` bytes, so this whole word is part of it.
                let address = unsafe { argument.cast::<u64>() }.at(word).get()?;
                if is_device_address(address) && !found.contains(&address) {
                    found.push(address);
                }
            }
            Ok(())
        };
        if !self.extra.is_null() {
            let (buffer, bytes) = self.buffer()?;
            add(buffer, bytes)?;
        } else if !self.parameters.is_null() {
            for (index, &bytes) in parameters.iter().enumerate() {
                add(self.parameters.at(index).follow()?, bytes as usize)?;
            }
        }
        Ok(found.into_boxed_slice())
    }

    /// Returns the buffer that contains all arguments, and the buffer's size in bytes.
    fn buffer(&self) -> Outcome<(Out<c_void>, usize)> {
        let (mut buffer, mut bytes) = (Out::NULL, Out::NULL);
        for pair in 0.. {
            let value = self.extra.at(2 * pair + 1);
            match self.extra.at(2 * pair).follow()?.address() {
                LAUNCH_PARAM_BUFFER_POINTER => buffer = value.follow()?,
                // SAFETY: the caller passes a pointer to a `size_t` for this key.
                LAUNCH_PARAM_BUFFER_SIZE => bytes = unsafe { value.follow()?.cast::<usize>() },
                _ => break,
            }
        }
        Ok((buffer, if bytes.is_null() { 0 } else { bytes.get()? }))
    }
}

/// Memory accesses of a kernel on a stream.
struct Seen<'c, 'e> {
    call: &'c mut Call<'e>,
    stream: u32,
}

impl Memory for Seen<'_, '_> {
    type Error = CUresult;

    fn read(&mut self, address: u64, into: &mut [u8]) -> Outcome {
        if !is_device_address(address) {
            host::read(address, into);
            return Ok(());
        }
        let bytes = into.len() as u64;
        for (offset, physical, length) in self.call.translate(self.stream, address, bytes, false)? {
            let into = &mut into[offset as usize..][..length as usize];
            self.call.state.pages.read(physical, into);
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Outcome {
        if !is_device_address(address) {
            host::write(address, from);
            return Ok(());
        }
        let bytes = from.len() as u64;
        for (offset, physical, length) in self.call.translate(self.stream, address, bytes, true)? {
            self.call.state.pages.write(physical, &from[offset as usize..][..length as usize]);
        }
        Ok(())
    }
}
