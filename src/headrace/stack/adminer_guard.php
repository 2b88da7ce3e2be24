<?php
// The router script of `php -S`: every request passes here before Adminer sees it. Adminer's own
// sessions and tokens keep other sites out of a session; this keeps them out of the page. Without
// it a web page whose name was made to resolve to this machine is of one origin with Adminer, and
// needs only the database's password, which is the same on every developer's machine.
//
// ADMINER_LOGIN is the query of a login form that is filled in: without it Adminer opens on MySQL.
// ADMINER_PAGE is Adminer's own script. ADMINER_ALLOWED_HOSTS lists names that are answered
// besides those of loopback; * is any.
(static function (): void {
    $refuse = static function (int $status, string $sentence): never {
        http_response_code($status);
        header('Content-Type: text/plain; charset=utf-8');
        header('Cache-Control: no-store');
        exit($sentence . "\n");
    };
    $host = strtolower($_SERVER['HTTP_HOST'] ?? '');
    $name = preg_match('/^\[([0-9a-f:.]+)\](?::[0-9]*)?$/', $host, $parts)
        ? $parts[1]
        : preg_replace('/:[0-9]*$/', '', $host);
    $name = preg_replace('/\.$/', '', $name);
    $allowed = array_map('trim', explode(',', strtolower(getenv('ADMINER_ALLOWED_HOSTS') ?: '')));
    $is_loopback = $name === 'localhost'
        || str_ends_with($name, '.localhost')
        || preg_match('/^127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$/', $name) === 1
        || @inet_pton($name) === inet_pton('::1');
    if (!$is_loopback && !in_array('*', $allowed, true) && !in_array($name, $allowed, true)) {
        $refuse(421, 'This page does not answer for the host it was asked for.');
    }

    // A page of another site may link here, and do nothing else.
    $method = $_SERVER['REQUEST_METHOD'] ?? '';
    $is_link = $method === 'GET'
        && ($_SERVER['HTTP_SEC_FETCH_MODE'] ?? '') === 'navigate'
        && ($_SERVER['HTTP_SEC_FETCH_DEST'] ?? '') === 'document';
    $site = $_SERVER['HTTP_SEC_FETCH_SITE'] ?? null;
    $origin = $_SERVER['HTTP_ORIGIN'] ?? null;
    $is_own = $site !== null
        ? in_array($site, ['same-origin', 'none'], true)
        : $origin === null || preg_replace('/^https?:\/\//', '', strtolower($origin)) === $host;
    if (!$is_own && !$is_link) {
        $refuse(403, 'A page of another origin may not use this one.');
    }
    $login = getenv('ADMINER_LOGIN') ?: '';
    $is_page = str_contains(strtolower($_SERVER['HTTP_ACCEPT'] ?? ''), 'text/html');
    if ($login !== '' && $method === 'GET' && $is_page && ($_SERVER['REQUEST_URI'] ?? '') === '/') {
        http_response_code(302);
        header('Location: /?' . $login);
        exit;
    }
    header('X-Content-Type-Options: nosniff');
    header('Cross-Origin-Resource-Policy: same-origin');
})();
chdir(dirname(getenv('ADMINER_PAGE')));
require getenv('ADMINER_PAGE');
