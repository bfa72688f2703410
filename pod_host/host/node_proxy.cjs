// Loaded by every node before its program (NODE_OPTIONS). A node that reads proxy variables itself is left alone; for older
// ones fetch, http and https go through the proxy that the variables name, each connection in a tunnel of its own.
'use strict';

const [major, minor] = process.versions.node.split('.').map(Number);
const readsVariables = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
const address = process.env.https_proxy || process.env.HTTPS_PROXY;

if (!readsVariables && address) {
  const http = require('http');
  const https = require('https');
  const net = require('net');
  const tls = require('tls');

  const proxy = new URL(address);
  const proxyPort = Number(proxy.port) || (proxy.protocol === 'https:' ? 443 : 80);
  const headers = {};
  if (proxy.username || proxy.password) {
    const credentials = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`;
    headers['Proxy-Authorization'] = `Basic ${Buffer.from(credentials).toString('base64')}`;
  }
  const direct = (process.env.no_proxy || process.env.NO_PROXY || '').split(',').map((name) => name.trim().toLowerCase());

  // The proxy itself too: a program that knows proxies connects to it by http.
  const isDirect = (host, port) =>
    (host === proxy.hostname && Number(port) === proxyPort) ||
    direct.some((name) => name && (name === '*' || host === name || host.endsWith(`.${name.replace(/^\*?\./, '')}`)));

  const tunnel = (host, port, done) => {
    const target = `${host.includes(':') ? `[${host}]` : host}:${port}`;
    const request = (proxy.protocol === 'https:' ? https : http).request({
      host: proxy.hostname, port: proxyPort, method: 'CONNECT', path: target, headers: { Host: target, ...headers }, agent: false,
    });
    request.once('connect', (answer, socket) => {
      if (answer.statusCode === 200) return done(null, socket);
      socket.destroy();
      return done(new Error(`the proxy refused ${target}: ${answer.statusCode} ${answer.statusMessage}`));
    });
    request.once('error', done);
    request.end();
  };

  const secure = (options, host, done) => {
    const socket = tls.connect({ ...options, servername: options.servername || (net.isIP(host) ? undefined : host) });
    socket.once('secureConnect', () => { socket.off('error', done); done(null, socket); });
    socket.once('error', done);
  };

  const through = (Base, isSecure, defaultPort) => class extends Base {
    createConnection(options, done) {
      const host = (options.host || 'localhost').replace(/^\[|\]$/g, '').toLowerCase();
      const port = options.port || defaultPort;
      if (options.socketPath || isDirect(host, port)) return super.createConnection(options, done);
      tunnel(host, port, (fault, socket) => {
        if (fault || !isSecure) return done(fault, socket);
        return secure({ ...options, socket }, host, done);
      });
      return undefined;
    }
  };

  const settings = { keepAlive: true, timeout: 5000 }; // as node's own global agents since 19
  const HttpAgent = through(http.Agent, false, 80);
  const HttpsAgent = through(https.Agent, true, 443);
  http.globalAgent = new HttpAgent(settings);
  https.globalAgent = new HttpsAgent(settings);

  if (typeof globalThis.fetch === 'function') {
    const original = globalThis.fetch;
    const slot = Symbol.for('undici.globalDispatcher.1');
    let mine;

    const connect = ({ hostname, protocol, port, servername }, done) => {
      const isSecure = protocol === 'https:';
      const host = hostname.replace(/^\[|\]$/g, '').toLowerCase();
      const number = Number(port) || (isSecure ? 443 : 80);
      const finish = (fault, socket) => {
        if (fault || !isSecure) return done(fault, socket);
        return secure({ socket, servername, ALPNProtocols: ['http/1.1'] }, host, done);
      };
      if (!isDirect(host, number)) return tunnel(host, number, finish);
      const socket = net.connect(number, host);
      socket.once('connect', () => { socket.off('error', finish); finish(null, socket); });
      socket.once('error', finish);
      return undefined;
    };

    // fetch's own client is loaded at its first use, and is the one way to its Agent.
    globalThis.fetch = function fetch(input, init) {
      if (mine === undefined) {
        void globalThis.Headers;
        const current = globalThis[slot];
        mine = current && new current.constructor({ connect });
        if (mine) globalThis[slot] = mine;
      }
      return original.call(this, input, init);
    };
  }
}
