//! The two nodes' connections: a queue pair (`wire.c`) for the bytes, and a TCP stream
//! to agree on what is moved.
#![allow(unsafe_code)]

use pinyard_registry::backend::Verbs;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 18_600;
/// No step of either side takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

#[repr(C)]
#[derive(Default)]
struct Address {
    queue_pair: u32,
    /// Eight-byte aligned in C.
    pad: u32,
    gid: [u64; 2],
}

unsafe extern "C" {
    fn wire_open(pd: *mut c_void, len: usize, own: *mut Address) -> *mut c_void;
    fn wire_close(wire: *mut c_void);
    fn wire_buffer(wire: *mut c_void) -> *mut c_char;
    fn wire_connect(wire: *mut c_void, peer: *const Address) -> c_int;
    fn wire_transfer(wire: *mut c_void, write: c_int, at: u64, rkey: u32) -> c_int;
    fn naive_register(
        pd: *mut c_void,
        at: *mut c_void,
        len: usize,
        on_demand: c_int,
        rkey: *mut u32,
    ) -> *mut c_void;
    fn naive_deregister(region: *mut c_void) -> c_int;
}

/// The stream to the other node.
pub(crate) struct Talk(TcpStream);

impl Talk {
    /// The owner's side.
    pub(crate) fn listen() -> Result<Talk> {
        let listener = TcpListener::bind(("0.0.0.0", PORT))?;
        listener.set_nonblocking(true)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Talk::over(stream),
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The peer's side.
    pub(crate) fn connect(host: &str) -> Result<Talk> {
        let end = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect((host, PORT)) {
                Ok(stream) => return Talk::over(stream),
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(error),
            }
        }
    }

    fn over(stream: TcpStream) -> Result<Talk> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Talk(stream))
    }

    pub(crate) fn say(&mut self, words: [u64; 4]) -> Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write_all(&bytes)
    }

    /// `None` when the other side is done.
    pub(crate) fn hear(&mut self) -> Result<Option<[u64; 4]>> {
        let mut bytes = [0; 32];
        match self.0.read(&mut bytes)? {
            0 => return Ok(None),
            read => self.0.read_exact(&mut bytes[read..])?,
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Ok(Some([word(0), word(8), word(16), word(24)]))
    }
}

/// A queue pair with a buffer of its own.
pub(crate) struct Wire {
    wire: *mut c_void,
    len: usize,
}

impl Wire {
    /// Both sides call this at the same time.
    pub(crate) fn open(verbs: &Verbs, len: usize, talk: &mut Talk) -> Result<Wire> {
        let mut own = Address::default();
        // SAFETY: an open protection domain, which outlives every wire in this program.
        let wire = unsafe { wire_open(verbs.pd().as_ptr(), len, &raw mut own) };
        if wire.is_null() {
            return Err(Error::last_os_error());
        }
        let wire = Wire { wire, len };
        talk.say([own.queue_pair.into(), own.gid[0], own.gid[1], 0])?;
        let Some([queue_pair, high, low, _]) = talk.hear()? else {
            return Err(Error::other("the other node is gone"));
        };
        let peer = Address { queue_pair: queue_pair as u32, pad: 0, gid: [high, low] };
        // SAFETY: an open wire and an address.
        match unsafe { wire_connect(wire.wire, &raw const peer) } {
            0 => {}
            errno => return Err(Error::from_raw_os_error(errno)),
        }
        // Nobody sends before both can receive.
        talk.say([0; 4])?;
        talk.hear()?;
        Ok(wire)
    }

    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes of the wire's own, which no transfer moves meanwhile.
        unsafe { std::slice::from_raw_parts_mut(wire_buffer(self.wire).cast(), self.len) }
    }

    /// The completion's status, 0 for success.
    pub(crate) fn transfer(&mut self, write: bool, at: u64, rkey: u32) -> Result<u32> {
        // SAFETY: an open wire; the peer's device checks the address against the key.
        let status = unsafe { wire_transfer(self.wire, write.into(), at, rkey) };
        u32::try_from(status).map_err(|_| Error::from_raw_os_error(-status))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: opened by `wire_open`, once.
        unsafe { wire_close(self.wire) };
    }
}

/// A registration that nobody takes back when its mapping changes.
pub(crate) struct Naive {
    region: *mut c_void,
    pub(crate) rkey: u32,
}

impl Naive {
    pub(crate) fn register(verbs: &Verbs, at: usize, len: usize, on_demand: bool) -> Result<Naive> {
        let mut rkey = 0;
        // SAFETY: an open protection domain; the kernel checks the addresses.
        let region = unsafe {
            naive_register(verbs.pd().as_ptr(), at as *mut c_void, len, on_demand.into(), &raw mut rkey)
        };
        if region.is_null() { Err(Error::last_os_error()) } else { Ok(Naive { region, rkey }) }
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        // SAFETY: from `naive_register`, once.
        unsafe { naive_deregister(self.region) };
    }
}
